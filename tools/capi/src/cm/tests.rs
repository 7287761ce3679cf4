//! Connections, by the functions that programs call: both sides in this process, on a loopback address.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sides;
mod strangers;

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::net::SocketAddr;
use std::time::Duration;

use super::abi::*;
use super::address;
use super::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
    rdma_write_cm_event,
};
use super::connect::*;
use super::id::*;
use super::info::*;
use super::queue::*;
use crate::abi::*;
use crate::cq;
use crate::error::last_code;
use crate::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use sides::{
    Channel, PATIENCE, Pair, accept, completion, connect, create, destroy, give_queue_pair, here, init_attr,
    listener, param, routed, seen, send, state_of,
};

#[test]
fn a_connection_from_the_request_to_its_end() {
    for first in [0, 1] {
        let pair = Pair::new();
        let [caller, called] = pair.ids;
        // SAFETY: objects of the test.
        unsafe {
            assert_eq!(((*called).context.addr(), (*called).verbs), (7, (*caller).verbs));
            assert_eq!(rdma_get_src_port(caller), rdma_get_dst_port(called));
            let mut bytes = [0_u8; 8];
            let mr = crate::mr::ibv_reg_mr(
                (*called).pd,
                bytes.as_mut_ptr().cast(),
                8,
                IBV_ACCESS_LOCAL_WRITE as c_int,
            );
            let mut sge = ibv_sge { addr: bytes.as_ptr().addr() as u64, length: 8, lkey: (*mr).lkey };
            let mut wr: ibv_recv_wr = zeroed();
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
            let mut bad = null_mut();
            assert_eq!(crate::post::post_recv((*called).qp, &raw mut wr, &raw mut bad), 0);
            assert_eq!(send(caller, b"12345678"), 0);
            assert_eq!(completion((*caller).send_cq).status, wc_status::SUCCESS);
            assert_eq!((completion((*called).recv_cq).byte_len, &bytes), (8, b"12345678"));
            assert_eq!(crate::mr::ibv_dereg_mr(mr), 0);
            assert_eq!(rdma_disconnect(pair.ids[first]), 0);
            for side in 0..2 {
                pair.of[side].expect(pair.ids[side], &seen(event::DISCONNECTED, 0, &[]));
            }
            assert_eq!(state_of(pair.ids[first]), qp_state::ERR);
            assert_ne!(state_of(pair.ids[1 - first]), qp_state::ERR, "until it disconnects too");
            assert_eq!(rdma_disconnect(pair.ids[1 - first]), 0);
            assert_eq!(state_of(pair.ids[1 - first]), qp_state::ERR);
        }
        assert!(!pair.of.iter().any(|channel| channel.has_event(0)), "each is told once");
    }
}

/// What one accepts is what the other may have in flight.
#[test]
fn parameters_are_those_of_the_other_side() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let caller = routed(&of_caller, port_space::TCP, port);
    connect(caller, &[9; 255]);
    let request = of_called.next();
    // SAFETY: the event is acknowledged below.
    unsafe {
        let conn = (*request).param.conn;
        assert_eq!((conn.responder_resources, conn.initiator_depth), (2, 3));
        assert_eq!((conn.retry_count, conn.rnr_retry_count, conn.private_data_len), (5, 4, 255));
        assert_eq!((*request).listen_id, listener);
        let called = (*request).id;
        assert_eq!(rdma_ack_cm_event(request), 0);
        let mut answer = rdma_conn_param { responder_resources: 1, initiator_depth: 9, ..param(&[]) };
        assert_eq!(rdma_accept(called, &raw mut answer), 0);
        let response = of_caller.next();
        assert_eq!((*response).event, event::CONNECT_RESPONSE, "it has no queue pair");
        let conn = (*response).param.conn;
        assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 1), "no more than was asked for");
        assert_eq!(rdma_ack_cm_event(response), 0);
        for (id, depths) in [(caller, (1, 3)), (called, (3, 1))] {
            let (mut attr, mut mask): (ibv_qp_attr, c_int) = (zeroed(), 0);
            attr.qp_state = qp_state::RTS;
            assert_eq!(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask), 0);
            assert_eq!((attr.retry_cnt, attr.rnr_retry), (5, 4));
            let (accepted, sent) = (depths.1, attr.max_rd_atomic);
            attr.qp_state = qp_state::RTR;
            assert_eq!(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask), 0);
            assert_eq!((sent, attr.max_dest_rd_atomic), (depths.0, accepted));
            assert_ne!(mask & qp_attr_mask::DEST_QPN, 0);
        }
        assert!(!of_called.has_event(0), "the caller is not ready");
        assert_eq!(rdma_establish(caller), 0);
        of_called.expect(called, &seen(event::ESTABLISHED, 0, &[]));
        [caller, called, listener].into_iter().for_each(destroy);
    }
}

/// A program that has its queue pair itself changes its state by what the library says.
#[test]
fn queue_pairs_of_programs_connect_too() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let caller = routed(&of_caller, port_space::TCP, port);
    let own = |id: *mut rdma_cm_id| {
        // SAFETY: objects of the test.
        unsafe {
            let mut attr = init_attr(IBV_QPT_RC);
            attr.send_cq = cq::ibv_create_cq((*id).verbs, 8, null_mut(), null_mut(), 0);
            attr.recv_cq = attr.send_cq;
            (ibv_create_qp((*id).pd, &raw mut attr), attr.send_cq)
        }
    };
    let advance = |id: *mut rdma_cm_id, qp: *mut ibv_qp, states: &[c_int]| {
        for state in states {
            // SAFETY: objects of the test.
            unsafe {
                let (mut attr, mut mask): (ibv_qp_attr, c_int) = (zeroed(), 0);
                attr.qp_state = *state;
                assert_eq!(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask), 0);
                assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask), 0);
            }
        }
    };
    let all = [qp_state::INIT, qp_state::RTR, qp_state::RTS];
    // SAFETY: objects of the test.
    unsafe {
        let (first, first_cq) = own(caller);
        let mut asks = rdma_conn_param { qp_num: (*first).qp_num, ..param(&[]) };
        assert_eq!(rdma_connect(caller, &raw mut asks), 0);
        let (_, called) = of_called.take();
        let (second, second_cq) = own(called);
        advance(called, second, &all);
        let mut answers = rdma_conn_param { qp_num: (*second).qp_num, ..param(&[]) };
        assert_eq!(rdma_accept(called, &raw mut answers), 0);
        of_caller.expect(caller, &seen(event::CONNECT_RESPONSE, 0, &[]));
        advance(caller, first, &all);
        assert_eq!(rdma_establish(caller), 0);
        of_called.expect(called, &seen(event::ESTABLISHED, 0, &[]));
        for (qp, queue) in [(first, first_cq), (second, second_cq)] {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(cq::ibv_destroy_cq(queue), 0);
        }
        [caller, called, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn refusals_tell_who_refused() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let caller = routed(&of_caller, port_space::TCP, port);
    give_queue_pair(caller);
    connect(caller, &[]);
    let (_, called) = of_called.take();
    // SAFETY: objects of the test.
    unsafe {
        assert_eq!(rdma_reject(called, b"no".as_ptr().cast(), 2), 0);
        of_caller.expect(caller, &seen(event::REJECTED, 28, b"no"));
        assert_eq!(state_of(caller), qp_state::ERR);
        assert_eq!((rdma_accept(called, null_mut()), last_code()), (-1, libc::ENOTCONN));
        destroy(called);
        // Another try, with another queue pair, of an object that goes without a decision.
        rdma_destroy_qp(caller);
        give_queue_pair(caller);
        connect(caller, &[]);
        let (_, called) = of_called.take();
        destroy(called);
        of_caller.expect(caller, &seen(event::REJECTED, 28, &[]));
        // Nobody reads the next request.
        rdma_destroy_qp(caller);
        give_queue_pair(caller);
        connect(caller, &[]);
        assert!(of_called.has_event(PATIENCE.as_millis() as c_int));
        destroy(listener);
        of_caller.expect(caller, &seen(event::REJECTED, 28, &[]));
        assert!(!of_called.has_event(0), "the request is gone with the listener");
        // Nobody listens.
        rdma_destroy_qp(caller);
        give_queue_pair(caller);
        connect(caller, &[]);
        of_caller.expect(caller, &seen(event::REJECTED, 8, &[]));
        destroy(caller);
    }
}

#[test]
fn no_more_requests_wait_than_the_listener_wants() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 2);
    let callers: Vec<_> = (0..3).map(|_| routed(&of_caller, port_space::TCP, port)).collect();
    for (n, caller) in callers.iter().enumerate() {
        connect(*caller, &[n as u8]);
        if n < 2 {
            // The next one comes after this.
            let began = std::time::Instant::now();
            // SAFETY: an object of the test.
            while unsafe { IdBox::of(listener) }.core.waiting() <= n {
                assert!(began.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
        }
    }
    of_caller.expect(callers[2], &seen(event::REJECTED, 28, &[]));
    for n in 0..2 {
        let (request, called) = of_called.take();
        assert_eq!(request.private, [n]);
        destroy(called);
    }
    callers.into_iter().chain([listener]).for_each(destroy);
}

/// An object is not destroyed while a thread looks at an event about it.
#[test]
fn who_destroys_waits_for_events_that_are_read() {
    let channel = Channel::new();
    let id = create(&channel, port_space::TCP);
    // SAFETY: an object of the test.
    unsafe {
        assert_eq!(rdma_write_cm_event(id, event::USER, -5, 77), 0);
        assert_eq!(rdma_write_cm_event(id, event::USER, 0, 78), 0);
        assert_eq!((rdma_write_cm_event(id, event::REJECTED, 0, 0), last_code()), (-1, libc::EINVAL));
    }
    let event = channel.next();
    // SAFETY: the event is not acknowledged.
    unsafe { assert_eq!(((*event).event, (*event).status, (*event).param.arg), (event::USER, -5, 77)) };
    let (of_thread, ended) = (id.addr(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let tells = std::sync::Arc::clone(&ended);
    let thread = std::thread::spawn(move || {
        destroy(of_thread as *mut rdma_cm_id);
        tells.store(true, std::sync::atomic::Ordering::Release);
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!ended.load(std::sync::atomic::Ordering::Acquire));
    // SAFETY: an event of the test, which is not used afterwards.
    assert_eq!(unsafe { rdma_ack_cm_event(event) }, 0);
    thread.join().unwrap();
    assert!(!channel.has_event(0), "the other event is gone");
}

#[test]
fn events_move_with_their_object() {
    let [one, two] = [Channel::new(), Channel::new()];
    let (first, second) = (create(&one, port_space::TCP), create(&one, port_space::TCP));
    // SAFETY: objects of the test.
    unsafe {
        for (id, arg) in [(first, 1), (second, 2), (first, 3)] {
            assert_eq!(rdma_write_cm_event(id, event::USER, arg, 0), 0);
        }
        assert_eq!(rdma_migrate_id(first, two.0), 0);
        assert_eq!((*first).channel, two.0);
        assert_eq!(rdma_write_cm_event(first, event::USER, 4, 0), 0);
    }
    one.expect(second, &seen(event::USER, 2, &[]));
    for arg in [1, 3, 4] {
        two.expect(first, &seen(event::USER, arg, &[]));
    }
    assert!(!one.has_event(0) && !two.has_event(0));
    // SAFETY: as above. Such a channel does not wait.
    unsafe {
        libc::fcntl(two.fd(), libc::F_SETFL, libc::O_NONBLOCK);
        let mut event = null_mut();
        assert_eq!((rdma_get_cm_event(two.0, &raw mut event), last_code()), (-1, libc::EAGAIN));
    }
    destroy(first);
    destroy(second);
}

/// Both sides wait in their calls, as programs with threads do.
#[test]
fn calls_without_a_channel_wait_for_their_events() {
    // SAFETY: texts, and objects that each thread has for itself.
    let info = |passive: bool, port: u16| unsafe {
        let mut hints: rdma_addrinfo = zeroed();
        (hints.ai_flags, hints.ai_port_space) = (if passive { RAI_PASSIVE } else { 0 }, port_space::TCP);
        let service = std::ffi::CString::new(port.to_string()).unwrap();
        let mut found = null_mut();
        assert_eq!(
            rdma_getaddrinfo(c"127.0.0.1".as_ptr(), service.as_ptr(), &raw const hints, &raw mut found),
            0
        );
        found
    };
    // SAFETY: as above.
    let (listener, port) = unsafe {
        let found = info(true, 0);
        let (mut id, mut attr) = (null_mut(), init_attr(IBV_QPT_RC));
        assert_eq!(rdma_create_ep(&raw mut id, found, null_mut(), &raw mut attr), 0);
        rdma_freeaddrinfo(found);
        assert_eq!(rdma_listen(id, 0), 0);
        (id.addr(), u16::from_be(rdma_get_src_port(id)))
    };
    let server = std::thread::spawn(move || {
        // SAFETY: as above.
        unsafe {
            let mut id = null_mut();
            assert_eq!(rdma_get_request(listener as *mut rdma_cm_id, &raw mut id), 0);
            assert!(!(*id).qp.is_null(), "as the listener was made");
            assert_eq!((*(*id).event).event, event::CONNECT_REQUEST);
            assert_eq!(rdma_accept(id, null_mut()), 0);
            assert_eq!(rdma_disconnect(id), 0);
            rdma_destroy_ep(id);
            rdma_destroy_ep(listener as *mut rdma_cm_id);
        }
    });
    // SAFETY: as above.
    unsafe {
        let found = info(false, port);
        let (mut id, mut attr) = (null_mut(), init_attr(IBV_QPT_RC));
        assert_eq!(rdma_create_ep(&raw mut id, found, null_mut(), &raw mut attr), 0);
        assert_eq!(rdma_connect(id, null_mut()), 0);
        assert_eq!((*(*id).event).event, event::ESTABLISHED);
        assert_eq!(rdma_disconnect(id), 0);
        server.join().unwrap();
        rdma_destroy_ep(id);
        // Now nobody listens. The queues of the first one have ended with it.
        attr = init_attr(IBV_QPT_RC);
        assert_eq!(rdma_create_ep(&raw mut id, found, null_mut(), &raw mut attr), 0);
        assert_eq!((rdma_connect(id, null_mut()), last_code()), (-1, libc::ECONNREFUSED));
        rdma_destroy_ep(id);
        rdma_freeaddrinfo(found);
    }
}

#[test]
fn a_queue_pair_of_datagrams_is_found_by_its_port() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::UDP, 0);
    let caller = routed(&of_caller, port_space::UDP, port);
    give_queue_pair(caller);
    connect(caller, b"who");
    let (request, called) = of_called.take();
    assert_eq!(request, seen(event::CONNECT_REQUEST, 0, b"who"));
    give_queue_pair(called);
    accept(called, b"me");
    let event = of_caller.next();
    // SAFETY: the event is acknowledged below, and the objects are the test's.
    unsafe {
        let ud = (*event).param.ud;
        assert_eq!(
            ((*event).event, ud.qp_num, ud.qkey),
            (event::ESTABLISHED, (*(*called).qp).qp_num, RDMA_UDP_QKEY)
        );
        assert_eq!(core::slice::from_raw_parts(ud.private_data.cast::<u8>(), 2), b"me");
        assert_eq!(ud.ah_attr.grh.dgid.raw[12..], [127, 0, 0, 1]);
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!((state_of(caller), state_of(called)), (qp_state::RTS, qp_state::RTS));
    }
    // A connection is not what is to be had here.
    let other = routed(&of_caller, port_space::TCP, port);
    connect(other, &[]);
    of_caller.expect(other, &seen(event::REJECTED, 28, &[]));
    [caller, called, other, listener].into_iter().for_each(destroy);
}

#[test]
fn calls_out_of_turn_are_refused() {
    let channel = Channel::new();
    let id = create(&channel, port_space::TCP);
    let (mut at, mut attr) = (here(0), init_attr(IBV_QPT_RC));
    let mut other = null_mut();
    // SAFETY: objects of the test.
    unsafe {
        let calls = [
            rdma_create_id(channel.0, &raw mut other, null_mut(), 99),
            rdma_resolve_route(id, 0),
            rdma_connect(id, null_mut()),
            rdma_accept(id, null_mut()),
            rdma_reject(id, core::ptr::null(), 0),
            rdma_establish(id),
            rdma_disconnect(id),
            rdma_get_request(id, &raw mut other),
            rdma_create_qp(id, null_mut(), &raw mut attr),
            rdma_bind_addr(id, null_mut()),
        ];
        assert_eq!(calls, [-1; 10]);
        assert_eq!(rdma_bind_addr(id, (&raw mut at).cast()), 0);
        assert_eq!((rdma_bind_addr(id, (&raw mut at).cast()), last_code()), (-1, libc::EINVAL));
        // The port is taken, and so it is for others.
        at = here(u16::from_be(rdma_get_src_port(id)));
        other = create(&channel, port_space::TCP);
        assert_eq!((rdma_bind_addr(other, (&raw mut at).cast()), last_code()), (-1, libc::EADDRINUSE));
        at = address::write("192.0.2.77:5".parse().unwrap()).0;
        assert_eq!((rdma_bind_addr(other, (&raw mut at).cast()), last_code()), (-1, libc::ENODEV));
    }
    destroy(id);
    destroy(other);
}

/// What names and options are there.
#[test]
fn options_names_and_devices() {
    let channel = Channel::new();
    let id = create(&channel, port_space::TCP);
    // SAFETY: objects and places of the test.
    unsafe {
        let (mut byte, mut number) = (9_u8, 1_i32);
        let byte = (&raw mut byte).cast::<c_void>();
        let number = (&raw mut number).cast::<c_void>();
        assert_eq!(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, byte, 1), 0);
        assert_eq!(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, byte, 1), 0);
        assert_eq!(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, number, 4), 0);
        assert_eq!(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, number, 4), 0);
        assert_eq!(
            (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, number, 1), last_code()),
            (-1, libc::EINVAL)
        );
        assert_eq!((rdma_set_option(id, 1, 1, number, 4), last_code()), (-1, libc::ENOSYS));
        let mut count = 0;
        let list = rdma_get_devices(&raw mut count);
        assert!(count == 1 && !(*list).is_null() && (*list.add(1)).is_null());
        rdma_free_devices(list);
        assert_eq!(rdma_resolve_addrinfo(id, c"127.0.0.1".as_ptr(), c"80".as_ptr(), core::ptr::null()), 0);
        channel.expect(id, &seen(event::ADDRINFO_RESOLVED, 0, &[]));
        let mut found = null_mut();
        assert_eq!(rdma_query_addrinfo(id, &raw mut found), 0);
        let to = address::read((*found).ai_dst_addr).unwrap().unwrap();
        assert_eq!((to, (*found).ai_qp_type), ("127.0.0.1:80".parse().unwrap(), IBV_QPT_RC));
        rdma_freeaddrinfo(found);
        assert_eq!(
            (
                rdma_getaddrinfo(core::ptr::null(), core::ptr::null(), core::ptr::null(), &raw mut found),
                last_code()
            ),
            (-1, libc::EINVAL)
        );
        let name = |kind| core::ffi::CStr::from_ptr(rdma_event_str(kind)).to_str().unwrap();
        assert_eq!(
            (name(9), name(19), name(20)),
            ("RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_INTERNAL", "UNKNOWN EVENT")
        );
        assert_eq!((absent(), last_code()), (-1, libc::EOPNOTSUPP));
    }
    destroy(id);
}

/// A descriptor agrees with its queue, whoever writes and reads at the same time.
#[test]
fn a_channel_is_readable_while_it_has_events() {
    let channel = Channel::new();
    let id = create(&channel, port_space::TCP);
    // SAFETY: a descriptor of the test.
    unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let of_thread = id.addr();
    let thread = std::thread::spawn(move || {
        for n in 0..20_000 {
            // SAFETY: an object of the test.
            assert_eq!(unsafe { rdma_write_cm_event(of_thread as *mut rdma_cm_id, event::USER, n, 0) }, 0);
        }
    });
    let mut next = 0;
    while next < 20_000 {
        let mut event = null_mut();
        // SAFETY: objects of the test.
        unsafe {
            if rdma_get_cm_event(channel.0, &raw mut event) == 0 {
                assert_eq!((*event).status, next);
                assert_eq!(rdma_ack_cm_event(event), 0);
                next += 1;
            }
        }
    }
    thread.join().unwrap();
    assert!(!channel.has_event(0));
    destroy(id);
}

/// A request that nobody has read moves with its listener, and so does what follows it.
#[test]
fn connections_of_a_listener_that_moves_report_where_it_is() {
    let [of_caller, before, after] = [Channel::new(), Channel::new(), Channel::new()];
    let (listener, port) = listener(&before, port_space::TCP, 0);
    let caller = routed(&of_caller, port_space::TCP, port);
    connect(caller, &[]);
    assert!(before.has_event(PATIENCE.as_millis() as c_int));
    // SAFETY: objects of the test.
    unsafe {
        assert_eq!(rdma_migrate_id(listener, after.0), 0);
        drop(before);
        let (_, called) = after.take();
        assert_eq!((*called).channel, after.0);
        assert_eq!(rdma_accept(called, null_mut()), 0);
        of_caller.expect(caller, &seen(event::CONNECT_RESPONSE, 0, &[]));
        // Whoever is accepted may refuse what it was answered.
        assert_eq!(rdma_reject(caller, b"no".as_ptr().cast(), 2), 0);
        after.expect(called, &seen(event::REJECTED, 28, b"no"));
        [caller, called, listener].into_iter().for_each(destroy);
    }
}
