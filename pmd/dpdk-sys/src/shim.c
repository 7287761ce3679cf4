/* Inline functions of DPDK and its larger structures, for Rust. */
#define _GNU_SOURCE
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "shim.h"

int spindrift_log_to(ssize_t (*write)(void *, const char *, size_t))
{
	cookie_io_functions_t functions = { .write = write };
	FILE *stream = fopencookie(NULL, "w", functions);

	if (stream == NULL)
		return -1;
	setvbuf(stream, NULL, _IOLBF, 0);
	return rte_openlog_stream(stream);
}

int spindrift_errno(void)
{
	return rte_errno;
}

const char *spindrift_plugins(void)
{
	return RTE_EAL_PMD_PATH;
}

int spindrift_thread_register(void)
{
	if (rte_lcore_id() != LCORE_ID_ANY)
		return -1;
	return rte_thread_register();
}

void spindrift_thread_forget(void)
{
	rte_thread_unregister();
}

int spindrift_port_from(uint16_t port)
{
	uint16_t next = rte_eth_find_next(port);

	return next < RTE_MAX_ETHPORTS ? next : -1;
}

int spindrift_port_name(uint16_t port, char *name)
{
	_Static_assert(RTE_ETH_NAME_MAX_LEN <= 64, "the length that callers have room for");
	return rte_eth_dev_get_name_by_port(port, name);
}

int spindrift_describe(uint16_t port, struct spindrift_device *out)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	int result;

	memset(out, 0, sizeof(*out));
	memset(&info, 0, sizeof(info));
	memset(&mac, 0, sizeof(mac));
	result = rte_eth_dev_info_get(port, &info);
	if (result != 0)
		return result;
	result = rte_eth_macaddr_get(port, &mac);
	if (result != 0)
		return result;
	out->driver = info.driver_name != NULL ? info.driver_name : "";
	out->interface = info.if_index;
	out->max_frame = info.max_rx_pktlen;
	out->min_mtu = info.min_mtu;
	out->max_mtu = info.max_mtu;
	out->max_rx_queues = info.max_rx_queues;
	out->max_tx_queues = info.max_tx_queues;
	out->scatters = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
	out->link_interrupts = info.dev_flags != NULL && (*info.dev_flags & RTE_ETH_DEV_INTR_LSC) != 0;
	out->gathers = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
	memcpy(out->mac, mac.addr_bytes, sizeof(out->mac));
	return 0;
}

int spindrift_configure(uint16_t port, uint16_t queues, uint32_t mtu, int scatter, int gather, int link_interrupts)
{
	struct rte_eth_conf conf;

	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
	conf.txmode.mq_mode = RTE_ETH_MQ_TX_NONE;
	conf.rxmode.mtu = mtu;
	/* With them, the link is a variable of the process, which takes no call of the driver to read. */
	conf.intr_conf.lsc = link_interrupts != 0;
	if (scatter)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	if (gather)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	return rte_eth_dev_configure(port, queues, queues, &conf);
}

int spindrift_rx_queue(uint16_t port, uint16_t queue, uint16_t descriptors, struct rte_mempool *pool, int scatter)
{
	struct rte_eth_dev_info info;
	struct rte_eth_rxconf conf;
	int result = rte_eth_dev_info_get(port, &info);

	if (result != 0)
		return result;
	conf = info.default_rxconf;
	conf.offloads = scatter ? RTE_ETH_RX_OFFLOAD_SCATTER : 0;
	return rte_eth_rx_queue_setup(port, queue, descriptors, rte_eth_dev_socket_id(port), &conf, pool);
}

int spindrift_tx_queue(uint16_t port, uint16_t queue, uint16_t descriptors, int gather)
{
	struct rte_eth_dev_info info;
	struct rte_eth_txconf conf;
	int result = rte_eth_dev_info_get(port, &info);

	if (result != 0)
		return result;
	conf = info.default_txconf;
	conf.offloads = gather ? RTE_ETH_TX_OFFLOAD_MULTI_SEGS : 0;
	return rte_eth_tx_queue_setup(port, queue, descriptors, rte_eth_dev_socket_id(port), &conf);
}

void spindrift_link_of(uint16_t port, struct spindrift_link *out)
{
	struct rte_eth_link link;

	memset(&link, 0, sizeof(link));
	memset(out, 0, sizeof(*out));
	if (rte_eth_link_get_nowait(port, &link) != 0)
		return;
	out->is_up = link.link_status == RTE_ETH_LINK_UP;
	if (link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN)
		out->mbps = link.link_speed;
}

int spindrift_stats_of(uint16_t port, struct spindrift_stats *out)
{
	struct rte_eth_stats stats;
	int result;

	memset(out, 0, sizeof(*out));
	memset(&stats, 0, sizeof(stats));
	result = rte_eth_stats_get(port, &stats);
	if (result != 0)
		return result;
	out->missed = stats.imissed;
	out->rx_errors = stats.ierrors;
	out->tx_errors = stats.oerrors;
	return 0;
}

int spindrift_xstats(uint16_t port, char *names, uint64_t *values, uint32_t room)
{
	int count = rte_eth_xstats_get_names(port, NULL, 0);
	struct rte_eth_xstat_name *known = NULL;
	struct rte_eth_xstat *stats = NULL;
	int result = count;

	_Static_assert(RTE_ETH_XSTATS_NAME_SIZE == SPINDRIFT_XSTAT_NAME, "the length that callers have room for");
	if (count <= 0 || room == 0)
		return count;
	known = calloc(count, sizeof(*known));
	stats = calloc(count, sizeof(*stats));
	if (known == NULL || stats == NULL) {
		result = -ENOMEM;
		goto out;
	}
	/* Another number than before: queues have come or gone meanwhile. */
	if (rte_eth_xstats_get_names(port, known, count) != count || rte_eth_xstats_get(port, stats, count) != count) {
		result = -EAGAIN;
		goto out;
	}
	for (uint32_t i = 0; i < room && i < (uint32_t)count; i++) {
		uint64_t id = stats[i].id;

		snprintf(names + i * SPINDRIFT_XSTAT_NAME, SPINDRIFT_XSTAT_NAME, "%s",
			 id < (uint64_t)count ? known[id].name : "");
		values[i] = stats[i].value;
	}
out:
	free(known);
	free(stats);
	return result;
}

void *spindrift_device_of(uint16_t port)
{
	struct rte_eth_dev_info info;

	return rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;
}

struct closing {
	uint16_t port;
	sem_t done;
};

static void close_port(void *arg)
{
	struct closing *closing = arg;

	rte_eth_dev_stop(closing->port);
	rte_eth_dev_close(closing->port);
	sem_post(&closing->done);
}

static void nothing_more(void *arg)
{
	struct closing *closing = arg;

	sem_post(&closing->done);
}

static void wait_for(sem_t *done)
{
	while (sem_wait(done) != 0 && errno == EINTR)
		;
}

int spindrift_close_by_interrupts(uint16_t port)
{
	struct closing closing = { .port = port };
	int result;

	sem_init(&closing.done, 0, 0);
	result = rte_eal_alarm_set(1, close_port, &closing);
	if (result == 0) {
		wait_for(&closing.done);
		/* What the driver unregistered is freed before the thread's next turn. */
		if (rte_eal_alarm_set(1, nothing_more, &closing) == 0)
			wait_for(&closing.done);
	}
	sem_destroy(&closing.done);
	return result;
}

int spindrift_remove(void *device)
{
	return rte_dev_remove(device);
}

struct rte_mempool *spindrift_pool(const char *name, uint32_t count, uint32_t cache, uint32_t room, int socket)
{
	return rte_pktmbuf_pool_create(name, count, cache, 0, (uint16_t)(room + RTE_PKTMBUF_HEADROOM), socket);
}

int spindrift_take(struct rte_mempool *pool, struct rte_mbuf **out, uint8_t **data, uint32_t count)
{
	int result = rte_pktmbuf_alloc_bulk(pool, out, count);

	if (result != 0)
		return result;
	for (uint32_t i = 0; i < count; i++)
		data[i] = rte_pktmbuf_mtod(out[i], uint8_t *);
	return 0;
}

void spindrift_set_len(struct rte_mbuf *mbuf, uint32_t len)
{
	mbuf->data_len = (uint16_t)len;
	mbuf->pkt_len = len;
}

/* Not called: the owner of the lending keeps a reference of its own. */
static void all_returned(void *bytes, void *arg)
{
	(void)bytes;
	(void)arg;
}

struct rte_mbuf_ext_shared_info *spindrift_lending(void)
{
	struct rte_mbuf_ext_shared_info *lending = calloc(1, sizeof(*lending));

	if (lending != NULL) {
		lending->free_cb = all_returned;
		rte_mbuf_ext_refcnt_set(lending, 1);
	}
	return lending;
}

void spindrift_lending_free(struct rte_mbuf_ext_shared_info *lending)
{
	free(lending);
}

uint16_t spindrift_lent(const struct rte_mbuf_ext_shared_info *lending)
{
	return rte_mbuf_ext_refcnt_read(lending) - 1;
}

void spindrift_lend(struct rte_mbuf *head, struct rte_mbuf *outside, struct rte_mbuf *tail, void *bytes, uint16_t len,
		    struct rte_mbuf_ext_shared_info *lending)
{
	rte_mbuf_ext_refcnt_update(lending, 1);
	rte_pktmbuf_attach_extbuf(outside, bytes, RTE_BAD_IOVA, len, lending);
	outside->data_off = 0;
	outside->data_len = len;
	head->next = outside;
	head->nb_segs = 2;
	head->pkt_len = head->data_len + len;
	if (tail != NULL) {
		outside->next = tail;
		head->nb_segs = 3;
		head->pkt_len += tail->data_len;
	}
}

int spindrift_join(struct rte_mbuf **frame, struct rte_mempool *pool)
{
	struct rte_mbuf *copy;

	if ((*frame)->nb_segs == 1)
		return 0;
	copy = rte_pktmbuf_copy(*frame, pool, 0, UINT32_MAX);
	if (copy == NULL)
		return -ENOMEM;
	rte_pktmbuf_free(*frame);
	*frame = copy;
	return 0;
}

int spindrift_chain(struct rte_mbuf *head, struct rte_mbuf *tail)
{
	return rte_pktmbuf_chain(head, tail);
}

uint16_t spindrift_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

void spindrift_part(const struct rte_mbuf *mbuf, struct spindrift_view *out)
{
	out->data = rte_pktmbuf_mtod(mbuf, const uint8_t *);
	out->len = mbuf->data_len;
	out->frame_len = mbuf->pkt_len;
	out->next = mbuf->next;
}

uint16_t spindrift_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, struct spindrift_view *views,
			   uint16_t count)
{
	uint16_t got = rte_eth_rx_burst(port, queue, mbufs, count);

	for (uint16_t i = 0; i < got; i++) {
		if (i + 3 < got)
			rte_prefetch0(rte_pktmbuf_mtod(mbufs[i + 3], const void *));
		spindrift_part(mbufs[i], &views[i]);
	}
	return got;
}
