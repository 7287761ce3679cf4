/*
 * A controller of MRC, and a program that uses what it has set, for `tests/controllers.rs`: one call each time, whose outcome is printed.
 * The declarations are those of this program alone: `mrc.h` and `mrc_ctl.h` are no part of this repository.
 *
 *   controller set ID PORT..          an explicit profile with these source ports, in turn on the ports of the device
 *   controller move ID STATE          0 INIT, 1 OFFLINE, 2 ONLINE
 *   controller deny ID VALUE PORT 0|1
 *   controller list ID
 *   controller port NUMBER 0|1
 *   controller watch ID               prints events until there was one of each kind
 *   controller pair ID                two queue pairs that write to each other until the end of standard input
 *   controller drop                   a change without any privilege
 *
 * PORTS is the number of the device's ports.
 */
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <infiniband/verbs.h>

struct ev {
    uint8_t val[32];
    uint8_t port;
};
struct entry {
    struct ev ev, next;
    uint32_t state, flags;
};
struct fields {
    uint32_t op;
    void *all;
    int count;
};
struct format {
    uint32_t state, now, mode;
    struct fields fields;
    uint8_t vendor[128];
};
struct profile {
    uint32_t state, now, mode;
    uint64_t format;
    uint32_t count, least;
    int events;
    struct fields entries, fields;
    uint8_t vendor[128];
};
struct event {
    uint64_t profile;
    struct ev ev;
    uint32_t drops, state;
};
struct init {
    void *user, *send_cq, *recv_cq;
    struct ibv_qp_cap cap;
    int sig_all;
    struct ibv_pd *pd;
    uint64_t ops;
    uint32_t protocol;
};
struct attributes {
    uint8_t before[8];
    uint64_t ev, cc;
    uint8_t after[152];
};

void *mrc_create_context(struct ibv_context *, void *);
int mrc_destroy_context(void *);
void *mrc_create_cq(void *, int, void *, void *, int);
int mrc_destroy_cq(void *);
int mrc_poll_cq(void *, int, struct ibv_wc *);
void *mrc_create_qp(void *, struct init *);
int mrc_destroy_qp(void *);
int mrc_get_qpn(void *, uint32_t *);
int mrc_modify_qp(void *, struct ibv_qp_attr *, int, struct attributes *, int);
int mrc_post_send(void *, struct ibv_send_wr *, struct ibv_send_wr **);
int mrc_ctl_modify_ev_fmt_profile(void *, uint64_t, struct format *, int);
int mrc_ctl_modify_ev_profile(void *, uint64_t, struct profile *, int);
int mrc_ctl_query_ev_profile(void *, uint64_t, struct profile *, int);
int mrc_ctl_modify_port(void *, uint8_t, uint32_t *, int);
void *mrc_ctl_create_ev_event_cq(void *, int, void *, void *, int);
int mrc_ctl_poll_ev_event(void *, int, struct event *);

enum { SIZE = 256 << 10 };

static int told(int failed)
{
    printf("%s\n", failed ? strerrorname_np(errno) : "ok");
    return 0;
}

static struct ev numbered(uint32_t value, uint8_t port)
{
    struct ev ev = {{0}, port};
    memcpy(ev.val, &value, sizeof value);
    return ev;
}

static int set(void *context, uint64_t id, char **ports, int count)
{
    uint8_t width = 16;
    struct format format = {.state = 1, .mode = 4, .fields = {0, &width, 1}};
    struct profile profile = {.state = 1, .mode = 2, .format = 1, .count = count, .least = 1, .events = 3};
    struct entry entries[64];
    int device_ports = atoi(getenv("PORTS"));

    mrc_ctl_modify_ev_fmt_profile(context, 1, &format, 1 | 4 | 8);
    format.state = 2;
    if (mrc_ctl_modify_ev_fmt_profile(context, 1, &format, 1))
        return told(1);
    if (mrc_ctl_modify_ev_profile(context, id, &profile, 1 | 4 | 8 | 16 | 32 | 64))
        return told(1);
    for (int at = 0; at < count; at++)
        entries[at] = (struct entry){numbered(0, 0), numbered(atoi(ports[at]), 1 + at % device_ports), 1, 0};
    profile.entries = (struct fields){0, entries, count};
    if (mrc_ctl_modify_ev_profile(context, id, &profile, 128))
        return told(1);
    profile.state = 2;
    return told(mrc_ctl_modify_ev_profile(context, id, &profile, 1));
}

static int list(void *context, uint64_t id)
{
    struct entry entries[64];
    struct profile profile = {.entries = {3, entries, 64}};

    if (mrc_ctl_query_ev_profile(context, id, &profile, 1 | 128))
        return told(1);
    printf("state %u:", profile.state);
    for (int at = 0; at < profile.entries.count; at++) {
        uint32_t value;
        memcpy(&value, entries[at].ev.val, sizeof value);
        printf(" %u/%u=%u", value, entries[at].ev.port, entries[at].state);
    }
    printf("\n");
    return 0;
}

static int watch(void *context, uint64_t id)
{
    void *queue = mrc_ctl_create_ev_event_cq(context, 256, NULL, NULL, 0);
    unsigned seen = 0;

    printf("watching\n");
    fflush(stdout);
    while (seen != 3) {
        struct event events[8];
        int count = mrc_ctl_poll_ev_event(queue, 8, events);
        for (int at = 0; at < count; at++)
            if (events[at].profile == id)
                seen |= events[at].state;
        usleep(1000);
    }
    return told(mrc_destroy_cq(queue));
}

struct side {
    void *qp;
    uint32_t number;
};

static int bring(struct side *side, const struct side *peer, union ibv_gid gid, uint64_t id)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    struct attributes mrc = {.ev = id};
    if (mrc_modify_qp(side->qp, &attr, IBV_QP_STATE, &mrc, id ? 1 << 5 : 0))
        return 1;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->number};
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .grh = {.dgid = gid}};
    if (mrc_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN, NULL, 0))
        return 1;
    attr.qp_state = IBV_QPS_RTS;
    return mrc_modify_qp(side->qp, &attr, IBV_QP_STATE, NULL, 0);
}

static int pair(struct ibv_context *verbs, void *context, uint64_t id)
{
    static unsigned char memory[2][SIZE];
    struct ibv_pd *pd = ibv_alloc_pd(verbs);
    void *cq = mrc_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct init init = {.send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .pd = pd};
    struct side sides[2];
    union ibv_gid gid;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    unsigned rounds = 0;

    ibv_query_gid(verbs, 1, 3, &gid);
    for (int at = 0; at < 2; at++) {
        sides[at].qp = mrc_create_qp(context, &init);
        mrc_get_qpn(sides[at].qp, &sides[at].number);
    }
    if (bring(&sides[0], &sides[1], gid, id) || bring(&sides[1], &sides[0], gid, 0))
        return told(1);
    while (poll(&input, 1, 0) == 0) {
        struct ibv_sge sge = {(uintptr_t)memory[0], SIZE, mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED}, *bad;
        struct ibv_wc wc;
        memset(memory[0], ++rounds, SIZE);
        wr.wr.rdma.remote_addr = (uintptr_t)memory[1];
        wr.wr.rdma.rkey = mr->rkey;
        if (mrc_post_send(sides[0].qp, &wr, &bad))
            return told(1);
        while (mrc_poll_cq(cq, 1, &wc) == 0)
            ;
        if (wc.status != IBV_WC_SUCCESS || memcmp(memory[0], memory[1], SIZE))
            return printf("%s\n", ibv_wc_status_str(wc.status)), 1;
        if (rounds == 1)
            printf("running\n"), fflush(stdout);
    }
    for (int at = 0; at < 2; at++)
        mrc_destroy_qp(sides[at].qp);
    mrc_destroy_cq(cq);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    return told(0);
}

static int drop(void *context)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    uint32_t disabled = 0;

    if (syscall(SYS_capset, &header, none))
        return told(1);
    return told(mrc_ctl_modify_port(context, 1, &disabled, 1));
}

int main(int count, char **words)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *verbs = ibv_open_device(devices[0]);
    uint32_t versions[2] = {0x01000001, 0};
    void *context = mrc_create_context(verbs, versions);
    const char *what = words[1];
    uint64_t id = count > 2 ? strtoull(words[2], NULL, 0) : 0;
    struct profile profile = {0};
    uint32_t state = count > 3 ? atoi(words[3]) : 0;
    struct entry entry;
    int code = 2;

    if (!strcmp(what, "set"))
        code = set(context, id, words + 3, count - 3);
    if (!strcmp(what, "move"))
        profile.state = state, code = told(mrc_ctl_modify_ev_profile(context, id, &profile, 1));
    if (!strcmp(what, "deny")) {
        entry = (struct entry){numbered(state, atoi(words[4])), numbered(0, 0), atoi(words[5]) ? 4 : 1, 0};
        profile.entries = (struct fields){1, &entry, 1};
        code = told(mrc_ctl_modify_ev_profile(context, id, &profile, 128));
    }
    if (!strcmp(what, "list"))
        code = list(context, id);
    if (!strcmp(what, "port"))
        code = told(mrc_ctl_modify_port(context, id, &state, 1));
    if (!strcmp(what, "watch"))
        code = watch(context, id);
    if (!strcmp(what, "pair"))
        code = pair(verbs, context, id);
    if (!strcmp(what, "drop"))
        code = drop(context);
    mrc_destroy_context(context);
    ibv_close_device(verbs);
    ibv_free_device_list(devices);
    return code;
}
