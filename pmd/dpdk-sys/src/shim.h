/* What the crate declares of DPDK. Inline functions and structures whose fields move between DPDK versions are behind functions and
 * structures of this header, so that one set of declarations fits every version. */
#ifndef SPINDRIFT_DPDK_SHIM_H
#define SPINDRIFT_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_mbuf_ext_shared_info;

/* Functions of DPDK as they are. */
int rte_eal_init(int argc, char **argv);
const char *rte_version(void);
const char *rte_eal_get_runtime_dir(void);
const char *rte_strerror(int errnum);
int rte_openlog_stream(FILE *stream);
int rte_dev_probe(const char *devargs);
int rte_eth_dev_get_port_by_name(const char *name, uint16_t *port);
int rte_eth_dev_start(uint16_t port);
int rte_eth_dev_stop(uint16_t port);
int rte_eth_dev_close(uint16_t port);
int rte_eth_allmulticast_enable(uint16_t port);
int rte_eth_promiscuous_enable(uint16_t port);
int rte_eth_dev_socket_id(uint16_t port);
int rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *rx, uint16_t *tx);
void rte_mempool_free(struct rte_mempool *pool);
unsigned int rte_mempool_avail_count(const struct rte_mempool *pool);
void rte_pktmbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count);

/* What a device is and can do. */
struct spindrift_device {
	/* Its driver; static text. */
	const char *driver;
	/* The interface of the kernel that it is, or 0. */
	uint32_t interface;
	uint32_t max_frame;
	uint32_t min_mtu;
	uint32_t max_mtu;
	uint32_t max_rx_queues;
	uint32_t max_tx_queues;
	/* Receives frames in several buffers, if asked to. */
	uint8_t scatters;
	/* Sends frames from several buffers. */
	uint8_t gathers;
	/* Reports changes of its link by interrupts. */
	uint8_t link_interrupts;
	uint8_t mac[6];
};

struct spindrift_link {
	uint8_t is_up;
	/* In Mb/s; 0: not known. */
	uint32_t mbps;
};

struct spindrift_stats {
	/* Arrived and lost. Failures to get a buffer are not among them: frames wait in the device then, and are here if it loses them. */
	uint64_t missed;
	uint64_t rx_errors;
	uint64_t tx_errors;
};

/* The first part of a received frame. */
struct spindrift_view {
	const uint8_t *data;
	uint32_t len;
	uint32_t frame_len;
	/* The next part. */
	struct rte_mbuf *next;
};

/* Sends the log to a function, which gets pieces of it. 0, or -1. */
int spindrift_log_to(ssize_t (*write)(void *, const char *, size_t));
int spindrift_errno(void);
/* The folder that drivers are loaded from. */
const char *spindrift_plugins(void);
/* Makes the calling thread known, so that it has caches of its own in memory pools. 0: it is to be forgotten when it ends. */
int spindrift_thread_register(void);
void spindrift_thread_forget(void);
/* The next port from this number on, or -1. */
int spindrift_port_from(uint16_t port);
/* The name of a port, in 64 bytes or more. */
int spindrift_port_name(uint16_t port, char *name);
int spindrift_describe(uint16_t port, struct spindrift_device *out);
/* One queue of each kind for each lane. */
int spindrift_configure(uint16_t port, uint16_t queues, uint32_t mtu, int scatter, int gather, int link_interrupts);
int spindrift_rx_queue(uint16_t port, uint16_t queue, uint16_t descriptors, struct rte_mempool *pool, int scatter);
int spindrift_tx_queue(uint16_t port, uint16_t queue, uint16_t descriptors, int gather);
void spindrift_link_of(uint16_t port, struct spindrift_link *out);
int spindrift_stats_of(uint16_t port, struct spindrift_stats *out);
/* Bytes of the name of a counter, with its end. */
#define SPINDRIFT_XSTAT_NAME 64
/* Names and values of the counters of a device's driver, `room` at most. Their number, which may be larger, or a negative error
 * number. */
int spindrift_xstats(uint16_t port, char *names, uint64_t *values, uint32_t room);
/* Stops and closes a port in the EAL's interrupt thread, and returns when that has forgotten the port. A negative error number: the EAL
 * cannot, and nothing was done. Not to be called by that thread. */
int spindrift_close_by_interrupts(uint16_t port);
/* Takes a closed port's device out of its bus, so that it can be probed again. Get it before the port is closed. */
void *spindrift_device_of(uint16_t port);
int spindrift_remove(void *device);
/* Buffers of `room` bytes behind the headroom. */
struct rte_mempool *spindrift_pool(const char *name, uint32_t count, uint32_t cache, uint32_t room, int socket);
/* Takes `count` buffers, or none, and shows where their bytes start. */
int spindrift_take(struct rte_mempool *pool, struct rte_mbuf **out, uint8_t **data, uint32_t count);
/* Counts the frames that refer to memory outside the pools. NULL: no memory. */
struct rte_mbuf_ext_shared_info *spindrift_lending(void);
void spindrift_lending_free(struct rte_mbuf_ext_shared_info *lending);
/* Frames that refer to such memory and have not been freed. */
uint16_t spindrift_lent(const struct rte_mbuf_ext_shared_info *lending);
/* Makes a frame of a head, of `len` bytes elsewhere, which `outside` refers to, and of a tail, unless that is NULL. Head and tail have
 * their lengths. The bytes have no address that a device could read them at: they are for drivers that copy. */
void spindrift_lend(struct rte_mbuf *head, struct rte_mbuf *outside, struct rte_mbuf *tail, void *bytes, uint16_t len,
		    struct rte_mbuf_ext_shared_info *lending);
/* Replaces a frame in several parts by a copy in one buffer of the pool. 0, or a negative error number: it is as it was. */
int spindrift_join(struct rte_mbuf **frame, struct rte_mempool *pool);
void spindrift_set_len(struct rte_mbuf *mbuf, uint32_t len);
uint16_t spindrift_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t spindrift_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, struct spindrift_view *views,
			   uint16_t count);
/* Appends a frame to another one. 0, or a negative error number. */
int spindrift_chain(struct rte_mbuf *head, struct rte_mbuf *tail);
/* One part of a frame. */
void spindrift_part(const struct rte_mbuf *mbuf, struct spindrift_view *out);

#endif
