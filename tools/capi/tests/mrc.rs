//! MRC's own interface, as a C program finds it: by the names of its files, linked and loaded.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::process::Command;

use support::{Library, Running};

/// Links some of the functions, looks all of them up in each file, and opens a device. The declarations are those of this program alone:
/// `mrc.h` is no part of this repository.
const NAMES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/verbs.h>

struct mrc_context;
void mrc_query_version(uint32_t *, uint32_t *, uint32_t *, uint32_t *);
struct mrc_context *mrc_create_context(struct ibv_context *, void *);
int mrc_destroy_context(struct mrc_context *);
int mrc_query_device(struct ibv_context *, void *, int *);

static const char *const names[] = {
    "mrc_query_device", "mrc_query_device_ex", "mrc_query_version", "mrc_create_context", "mrc_destroy_context",
    "mrc_create_comp_channel", "mrc_get_comp_channel_fd", "mrc_destroy_comp_channel", "mrc_create_cq", "mrc_poll_cq",
    "mrc_destroy_cq", "mrc_create_qp_hint", "mrc_destroy_qp_hint", "mrc_query_qp_hint", "mrc_modify_qp_hint",
    "mrc_create_qp", "mrc_destroy_qp", "mrc_query_qp", "mrc_modify_qp", "mrc_get_qpn", "mrc_post_recv",
    "mrc_post_send", "mrc_get_async_event", "mrc_ack_async_event", "mrc_req_notify_cq", "mrc_get_cq_event",
    "mrc_ack_cq_events", "mrc_ctl_query_device", "mrc_ctl_query_device_ex", "mrc_ctl_query_version", "mrc_ctl_query_port",
    "mrc_ctl_modify_port", "mrc_ctl_modify_ev_fmt_profile", "mrc_ctl_query_ev_fmt_profile",
    "mrc_ctl_modify_ev_profile", "mrc_ctl_query_ev_profile", "mrc_ctl_modify_cc_profile", "mrc_ctl_query_cc_profile",
    "mrc_ctl_create_ev_event_cq", "mrc_ctl_poll_ev_event", "mrc_ctl_ep_batch_send_wait",
};

int main(void)
{
    const char *const files[] = {"lib_mrc.so", "libnv_mrc.so", "libmrc.so"};
    for (int file = 0; file < 3; file++) {
        void *library = dlopen(files[file], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return printf("%s\n", dlerror()), 1;
        for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
            void *found = dlsym(library, names[at]);
            if (!found || found != dlsym(RTLD_DEFAULT, names[at]))
                return printf("%s of %s\n", names[at], files[file]), 1;
        }
    }
    uint32_t versions[4];
    mrc_query_version(&versions[0], &versions[1], &versions[2], &versions[3]);
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *verbs = ibv_open_device(devices[0]);
    unsigned char attributes[21];
    memset(attributes, 0xee, sizeof attributes);
    int supported = 0;
    struct mrc_context *context = mrc_create_context(verbs, NULL);
    if (!context || mrc_query_device(verbs, attributes, &supported) || !supported || attributes[20] != 0xee)
        return printf("no MRC\n"), 1;
    if (mrc_query_device(NULL, attributes, &supported) != -1 || errno != EINVAL || mrc_destroy_context(context))
        return printf("errors\n"), 1;
    ibv_free_device_list(devices);
    printf("version %#x\n", versions[0]);
    return ibv_close_device(verbs);
}
"#;

#[test]
fn programs_find_the_interface_by_its_names() {
    let required = std::env::var_os("SPINDRIFT_REQUIRE_VERBS_H").is_some();
    let folder = std::env::temp_dir().join(format!("spindrift-mrc-names-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("names.c"), folder.join("names"));
    std::fs::write(&source, NAMES).unwrap();
    let library = Library::new();
    for own in ["lib_mrc.so", "libnv_mrc.so"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&binary).arg(&source);
        let compiled = compiler.arg(library.file(own)).args(["-libverbs", "-ldl"]).output();
        if !compiled.as_ref().is_ok_and(|output| output.status.success()) {
            assert!(!required, "{compiled:?}; ./tools/setup.sh --tests installs what is missing");
            eprintln!("SKIPPED: there is no C compiler, or no package libibverbs-dev");
            break;
        }
        let (code, said) = Running::start(&mut library.command(&binary, "127.0.0.1", "")).end();
        assert_eq!((code, said.trim()), (Some(0), "version 0x1000001"));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
