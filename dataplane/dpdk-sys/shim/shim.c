/*
 * Plain functions over scalars for the parts of DPDK that are inline in its headers, or that use structures
 * whose layout differs between releases. The assertions check the layout of an mbuf in Rust (src/lib.rs).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_thash.h>
#include <rte_version.h>

#define AT(field, offset, size)                                                                                        \
	_Static_assert(offsetof(struct rte_mbuf, field) == (offset), "rte_mbuf." #field " has moved");                 \
	_Static_assert(sizeof(((struct rte_mbuf *)0)->field) == (size), "rte_mbuf." #field " has another size")

AT(buf_addr, 0, 8);
AT(data_off, 16, 2);
AT(refcnt, 18, 2);
AT(nb_segs, 20, 2);
AT(ol_flags, 24, 8);
AT(pkt_len, 36, 4);
AT(data_len, 40, 2);
AT(hash.usr, 44, 4);
AT(buf_len, 54, 2);
_Static_assert(sizeof(struct rte_mbuf) == 128, "rte_mbuf has another size");
#ifndef RTE_MBUF_REFCNT_ATOMIC
#error "frames change threads, so their reference counts must be atomic"
#endif
_Static_assert(RTE_MBUF_F_RX_IP_CKSUM_MASK == (UINT64_C(1) << 4 | UINT64_C(1) << 7) &&
		       RTE_MBUF_F_RX_IP_CKSUM_GOOD == UINT64_C(1) << 7,
	       "the checksum flags of a received frame have moved");
_Static_assert((RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT) == UINT64_C(3) << 61, "the flags of attached buffers have moved");
_Static_assert(RTE_PKTMBUF_HEADROOM >= 64, "the headroom is too small for devices");

/* ------------------------------------------------------------------------------------------------------- process */

int cn_errno(void) { return rte_errno; }

const char *cn_version(void) { return rte_version(); }

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
	((void (*)(const char *, size_t))cookie)(text, length);
	return length;
}

/* Sends DPDK's log to `sink`. */
int cn_log_to(void (*sink)(const char *, size_t))
{
	cookie_io_functions_t io = {.write = log_write};
	FILE *stream = fopencookie((void *)sink, "w", io);

	if (stream == NULL)
		return -ENOMEM;
	/* Unbuffered: each line reaches the sink in the thread that logs it. */
	setvbuf(stream, NULL, _IONBF, 0);
	return rte_openlog_stream(stream);
}

/* ------------------------------------------------------------------------------------------------------- buffers */

uint16_t cn_headroom(void) { return RTE_PKTMBUF_HEADROOM; }

int cn_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void cn_free(struct rte_mbuf *mbuf) { rte_pktmbuf_free(mbuf); }

struct rte_mbuf *cn_next(const struct rte_mbuf *mbuf) { return mbuf->next; }

/*
 * Combines the new mbufs `head`, `body` and `tail` into one frame. The caller fills in the first `private_head`
 * and the last `private_tail` bytes. The bytes between are those of `original`, which lives until the last frame
 * that shares it is freed. `original` has one segment or is a frame made by this function.
 */
void cn_share(struct rte_mbuf *head, struct rte_mbuf *body, struct rte_mbuf *tail, struct rte_mbuf *original,
	      uint16_t private_head, uint16_t private_tail)
{
	uint32_t length = original->pkt_len;

	if (original->nb_segs == 1) {
		rte_pktmbuf_attach(body, original);
		body->data_off = original->data_off + private_head;
	} else {
		rte_pktmbuf_attach(body, original->next);
	}
	body->data_len = length - private_head - private_tail;
	body->pkt_len = body->data_len;
	/* The device's checksum flags do not apply to a rewritten frame. */
	body->ol_flags &= RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
	head->data_len = private_head;
	tail->data_len = private_tail;
	tail->pkt_len = private_tail;
	head->next = body;
	body->next = tail;
	head->nb_segs = 3;
	head->pkt_len = length;
}

/*
 * Combines the new mbufs `head` and `body` into one frame. The caller fills in the first `private_head` bytes. The
 * rest is that of `original`, a frame of one segment in its own buffer, which lives until the last frame that
 * borrows it is freed. The caller has incremented its reference count. This is rte_pktmbuf_attach without the
 * counting and without the device's flags of the original, which are in another cache line.
 */
void cn_lend(struct rte_mbuf *head, struct rte_mbuf *body, struct rte_mbuf *original, uint16_t private_head)
{
	body->ol_flags = RTE_MBUF_F_INDIRECT;
	rte_mbuf_iova_set(body, rte_mbuf_iova_get(original));
	body->buf_addr = original->buf_addr;
	body->buf_len = original->buf_len;
	body->data_off = original->data_off + private_head;
	body->data_len = original->data_len - private_head;
	body->pkt_len = body->data_len;
	head->data_len = private_head;
	head->next = body;
	head->nb_segs = 2;
	head->pkt_len = original->pkt_len;
}

/* -------------------------------------------------------------------------------------------------------- frames */

uint16_t cn_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, mbufs, count);
}

uint16_t cn_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

/* The number of waiting frames. Negative if the device does not report it. */
int cn_rx_waiting(uint16_t port, uint16_t queue) { return rte_eth_rx_queue_count(port, queue); }

/* ------------------------------------------------------------------------------------------------------- devices */

struct cn_info {
	char driver[32];
	uint8_t mac[6];
	uint16_t rx_queues_max;
	uint16_t tx_queues_max;
	uint16_t mtu_min;
	uint16_t mtu_max;
	int32_t socket;
	uint8_t multi_segment;
	uint8_t rss;
};

int cn_info(uint16_t port, struct cn_info *out)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	uint32_t overhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
	int failed = rte_eth_dev_info_get(port, &info);

	if (failed == 0)
		failed = rte_eth_macaddr_get(port, &mac);
	if (failed != 0)
		return failed;
	memset(out, 0, sizeof(*out));
	if (info.driver_name != NULL)
		snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name);
	memcpy(out->mac, mac.addr_bytes, sizeof(out->mac));
	out->rx_queues_max = info.max_rx_queues;
	out->tx_queues_max = info.max_tx_queues;
	out->mtu_min = info.min_mtu;
	out->mtu_max = info.max_mtu;
	if (info.max_rx_pktlen != UINT32_MAX && info.max_rx_pktlen > overhead &&
	    info.max_rx_pktlen - overhead < out->mtu_max)
		out->mtu_max = info.max_rx_pktlen - overhead;
	out->socket = rte_eth_dev_socket_id(port);
	out->multi_segment = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
	out->rss = (info.flow_type_rss_offloads & (RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_UDP)) != 0;
	return 0;
}

struct cn_setup {
	struct rte_mempool *pool;
	uint8_t *rss_key;
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu;
	uint8_t rss_key_length;
	uint8_t promiscuous;
	/* Output: what the device supports. */
	uint8_t multi_segment;
	uint8_t rss;
	uint8_t rx_checksum;
};

/* Configures and starts a device. On failure `*step` is the step that failed. */
int cn_setup(uint16_t port, struct cn_setup *setup, const char **step)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	struct rte_eth_rss_conf *rss = &conf.rx_adv_conf.rss_conf;
	uint64_t hash = RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_UDP;
	uint16_t queue;
	int socket = rte_eth_dev_socket_id(port);
	int failed;

	if (socket < 0)
		socket = SOCKET_ID_ANY;
	*step = "query its capabilities";
	failed = rte_eth_dev_info_get(port, &info);
	if (failed != 0)
		return failed;

	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = setup->mtu;
	if (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	setup->multi_segment = conf.txmode.offloads != 0;
	conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
	setup->rx_checksum = conf.rxmode.offloads != 0;
	hash &= info.flow_type_rss_offloads;
	setup->rss = setup->rx_queues > 1 && hash != 0;
	if (setup->rss) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		rss->rss_hf = hash | RTE_ETH_RSS_L3_DST_ONLY;
		if (info.hash_key_size != 0 && info.hash_key_size <= setup->rss_key_length) {
			rss->rss_key = setup->rss_key;
			rss->rss_key_len = info.hash_key_size;
		}
	}

	*step = "configure it";
	failed = rte_eth_dev_configure(port, setup->rx_queues, setup->tx_queues, &conf);
	if (failed != 0 && setup->rss) {
		/* Not every driver can hash the destination alone; the key has nearly the same effect. */
		rss->rss_hf = hash;
		failed = rte_eth_dev_configure(port, setup->rx_queues, setup->tx_queues, &conf);
	}
	if (failed != 0 && setup->tx_queues != setup->rx_queues) {
		/* Some drivers need equal numbers of both kinds of queues (AF_XDP, tap). */
		failed = rte_eth_dev_configure(port, setup->rx_queues, setup->rx_queues, &conf);
		if (failed == 0)
			setup->tx_queues = setup->rx_queues;
	}
	if (failed != 0)
		return failed;

	*step = "adjust its rings";
	failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, &setup->rx_descriptors, &setup->tx_descriptors);
	if (failed != 0)
		return failed;
	*step = "set a receive queue up";
	for (queue = 0; queue < setup->rx_queues; queue++) {
		failed = rte_eth_rx_queue_setup(port, queue, setup->rx_descriptors, socket, NULL, setup->pool);
		if (failed != 0)
			return failed;
	}
	*step = "set a send queue up";
	for (queue = 0; queue < setup->tx_queues; queue++) {
		failed = rte_eth_tx_queue_setup(port, queue, setup->tx_descriptors, socket, NULL);
		if (failed != 0)
			return failed;
	}
	*step = "set its MTU";
	failed = rte_eth_dev_set_mtu(port, setup->mtu);
	/* If the MTU cannot be set, that of the configuration applies. */
	if (failed != 0 && failed != -ENOTSUP)
		return failed;
	*step = "start it";
	failed = rte_eth_dev_start(port);
	if (failed != 0)
		return failed;
	if (setup->promiscuous) {
		*step = "make it promiscuous";
		failed = rte_eth_promiscuous_enable(port);
		if (failed != 0 && failed != -ENOTSUP) {
			rte_eth_dev_stop(port);
			return failed;
		}
	}
	return 0;
}

/* ---------------------------------------------------------------------------------------------------------- rules */

/*
 * A rule that directs frames to one IPv4 address to one receive queue. The narrow form also matches RoCEv2's UDP
 * port, for devices that cannot match an address alone.
 */
struct rule {
	struct rte_flow_attr attr;
	struct rte_flow_item_ipv4 ip, ip_mask;
	struct rte_flow_item_udp udp, udp_mask;
	struct rte_flow_action_queue queue;
	struct rte_flow_item pattern[4];
	struct rte_flow_action actions[2];
};

static void rule_build(struct rule *rule, uint32_t dst, uint16_t queue, int narrow)
{
	struct rte_flow_item *item = rule->pattern;

	memset(rule, 0, sizeof(*rule));
	rule->attr.ingress = 1;
	item++->type = RTE_FLOW_ITEM_TYPE_ETH;
	rule->ip.hdr.dst_addr = htonl(dst);
	rule->ip_mask.hdr.dst_addr = UINT32_MAX;
	if (narrow) {
		rule->ip.hdr.next_proto_id = IPPROTO_UDP;
		rule->ip_mask.hdr.next_proto_id = UINT8_MAX;
		rule->udp.hdr.dst_port = htons(4791);
		rule->udp_mask.hdr.dst_port = UINT16_MAX;
	}
	*item++ = (struct rte_flow_item){
		.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &rule->ip, .mask = &rule->ip_mask};
	if (narrow)
		*item++ = (struct rte_flow_item){
			.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &rule->udp, .mask = &rule->udp_mask};
	item->type = RTE_FLOW_ITEM_TYPE_END;
	rule->queue.index = queue;
	rule->actions[0] = (struct rte_flow_action){.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &rule->queue};
	rule->actions[1].type = RTE_FLOW_ACTION_TYPE_END;
}

/* Returns null if the device refuses the rule. rte_errno is the reason, and `why` the driver's message. */
struct rte_flow *cn_flow_create(uint16_t port, uint32_t dst, uint16_t queue, int narrow, char *why, size_t room)
{
	struct rte_flow *flow = NULL;
	struct rte_flow_error error;
	struct rule rule;

	memset(&error, 0, sizeof(error));
	rule_build(&rule, dst, queue, narrow);
	if (rte_flow_validate(port, &rule.attr, rule.pattern, rule.actions, &error) == 0)
		flow = rte_flow_create(port, &rule.attr, rule.pattern, rule.actions, &error);
	if (flow == NULL && error.message != NULL)
		snprintf(why, room, "%s", error.message);
	return flow;
}

int cn_flow_destroy(uint16_t port, struct rte_flow *flow) { return rte_flow_destroy(port, flow, NULL); }

/* Writes a rule in testpmd's syntax, decoded from the structures that a device would receive. */
int cn_flow_text(uint32_t dst, uint16_t queue, int narrow, char *out, size_t room)
{
	const struct rte_flow_item *item;
	const struct rte_flow_action *action;
	char address[INET_ADDRSTRLEN];
	struct rule rule;
	size_t at;

	rule_build(&rule, dst, queue, narrow);
#define SAY(...) (at = at < room ? at + (size_t)snprintf(out + at, room - at, __VA_ARGS__) : at)
	at = 0;
	SAY("%s pattern", rule.attr.ingress && !rule.attr.egress && !rule.attr.transfer ? "ingress" : "?");
	for (item = rule.pattern; item->type != RTE_FLOW_ITEM_TYPE_END; item++) {
		const struct rte_flow_item_ipv4 *ip = item->spec, *ip_mask = item->mask;
		const struct rte_flow_item_udp *udp = item->spec, *udp_mask = item->mask;

		switch (item->type) {
		case RTE_FLOW_ITEM_TYPE_ETH:
			SAY(" eth%s /", item->spec == NULL && item->mask == NULL ? "" : " ?");
			break;
		case RTE_FLOW_ITEM_TYPE_IPV4:
			SAY(" ipv4");
			if (ip_mask->hdr.next_proto_id == UINT8_MAX)
				SAY(" proto is %u", ip->hdr.next_proto_id);
			if (ip_mask->hdr.dst_addr == UINT32_MAX)
				SAY(" dst is %s", inet_ntop(AF_INET, &ip->hdr.dst_addr, address, sizeof(address)));
			SAY(" /");
			break;
		case RTE_FLOW_ITEM_TYPE_UDP:
			if (udp_mask->hdr.dst_port == UINT16_MAX)
				SAY(" udp dst is %u /", ntohs(udp->hdr.dst_port));
			break;
		default:
			SAY(" ? /");
		}
	}
	SAY(" end actions");
	for (action = rule.actions; action->type != RTE_FLOW_ACTION_TYPE_END; action++)
		if (action->type == RTE_FLOW_ACTION_TYPE_QUEUE)
			SAY(" queue index %u /", ((const struct rte_flow_action_queue *)action->conf)->index);
		else
			SAY(" ? /");
	SAY(" end");
#undef SAY
	return at < room ? 0 : -ENOSPC;
}

/* ---------------------------------------------------------------------------------------------------------- state */

/* Returns 1 if the link is up, else 0. `*mbps` is its speed, 0 if unknown. */
int cn_link(uint16_t port, uint32_t *mbps)
{
	struct rte_eth_link link;

	memset(&link, 0, sizeof(link));
	*mbps = 0;
	if (rte_eth_link_get_nowait(port, &link) != 0)
		return 0;
	if (link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN)
		*mbps = link.link_speed;
	return link.link_status == RTE_ETH_LINK_UP;
}

/* Received frames lost in the device: no space in its ring, no buffer, or damaged. */
uint64_t cn_missed(uint16_t port)
{
	struct rte_eth_stats stats;

	if (rte_eth_stats_get(port, &stats) != 0)
		return 0;
	return stats.imissed + stats.ierrors + stats.rx_nombuf;
}

static int remove_device(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct rte_device *device = NULL;
	int failed;

	if (rte_eth_dev_info_get(port, &info) == 0)
		device = info.device;
	rte_eth_dev_stop(port);
	failed = rte_eth_dev_close(port);
	if (device != NULL)
		failed = rte_dev_remove(device);
	return failed;
}

struct removal {
	uint16_t port;
	int failed;
	int done;
};

static void remove_now(void *arg)
{
	struct removal *removal = arg;

	removal->failed = remove_device(removal->port);
	__atomic_store_n(&removal->done, 1, __ATOMIC_RELEASE);
}

/*
 * Stops, closes and removes a device. DPDK's thread of interrupts may be in a handler of memif just then, because the peer has gone,
 * and would go on to use the device. Alarms run on that thread between its handlers, so it removes such devices itself.
 */
int cn_remove(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct removal removal = {.port = port};

	if (rte_eth_dev_info_get(port, &info) != 0 || strcmp(info.driver_name, "net_memif") != 0 ||
	    rte_eal_alarm_set(1, remove_now, &removal) != 0)
		return remove_device(port);
	while (__atomic_load_n(&removal.done, __ATOMIC_ACQUIRE) == 0)
		rte_delay_us_sleep(100);
	return removal.failed;
}

/* DPDK's software implementation of the hash, for tests. */
uint32_t cn_softrss(uint32_t *tuple, uint32_t words, const uint8_t *key) { return rte_softrss(tuple, words, key); }
