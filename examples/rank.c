/*
 * One rank of a collective group, in C over libibverbs alone: an AllReduce, a Reduce, a Broadcast and a barrier on
 * one queue pair, each element of each result checked. docs/write-your-own-rank.md explains it step by step,
 * docs/control-message.md has the protocol.
 *
 *     cc -std=c11 -O2 -Wall -Wextra -Werror -o rank examples/rank.c -libverbs
 *     ./rank --rank 0 --size 3 --group 10.0.0.200
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are little endian on the wire: convert them here"
#endif

enum { CONTROL_BYTES = 64, CALL_BYTES = 20, ELEMENT_BYTES = 4, GROUP_QPN = 1, PORT = 1, PATIENCE_S = 60 };
/* The immediate data of a control message, and its first four bytes: "CNC", version 1. */
#define IMMEDIATE UINT32_C(0x434E4301)
enum { ALLREDUCE = 1, REDUCE = 2, BROADCAST = 3 };
enum { SUM = 1 };
enum { F32 = 1, I32 = 7, U8 = 9 };

/* The call, which must be the same at all ranks. */
struct call {
    uint8_t primitive, operation, type;
    uint16_t root;
    uint32_t packets;
    uint64_t elements;
};

struct rank {
    /* Options. All except number and ip are the same at all ranks. */
    unsigned number, size, pmtu, message_packets, window, timeout;
    uint64_t elements;
    uint8_t type;
    const char *ip;
    struct in_addr group;
    /* The RNIC. */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *memory;
    uint8_t gid_index;
    char mac[18], address[INET_ADDRSTRLEN];
    uint32_t sq_psn, rq_psn;
    /* Registered memory: the control message, the data to send, and a slot for each posted receive. */
    uint8_t *control, *data, *slots;
    uint32_t message_bytes, slot_bytes, slot_count, sends_max;
    /* Unacknowledged sends, and the number of the next collective. */
    uint32_t unacknowledged, sequence;
};

/* Prints an error and what to do next, and exits. */
__attribute__((noreturn, format(printf, 3, 4)))
static void fail(int error, const char *next, const char *what, ...)
{
    va_list list;
    va_start(list, what);
    fputs("rank: ", stderr);
    vfprintf(stderr, what, list);
    va_end(list);
    fprintf(stderr, "%s%s\n  next: %s\n", error ? ": " : "", error ? strerror(error) : "", next);
    exit(1);
}

/* ---- The control message ---- */

static void put16(uint8_t *to, uint16_t value) { value = htons(value); memcpy(to, &value, 2); }
static void put32(uint8_t *to, uint32_t value) { value = htonl(value); memcpy(to, &value, 4); }
static uint16_t get16(const uint8_t *from) { uint16_t value; memcpy(&value, from, 2); return ntohs(value); }
static uint32_t get32(const uint8_t *from) { uint32_t value; memcpy(&value, from, 4); return ntohl(value); }

static void write_call(uint8_t *to, const struct call *call)
{
    memset(to, 0, CALL_BYTES);
    to[0] = call->primitive;
    to[1] = call->operation;
    to[2] = call->type;
    put16(to + 4, call->root);
    put32(to + 8, call->packets);
    put32(to + 12, (uint32_t)(call->elements >> 32));
    put32(to + 16, (uint32_t)call->elements);
}

static void write_control(const struct rank *r, const struct call *call)
{
    memset(r->control, 0, CONTROL_BYTES);
    put32(r->control, IMMEDIATE);
    put32(r->control + 4, r->sequence);
    put16(r->control + 8, (uint16_t)r->number);
    write_call(r->control + 12, call);
}

static const char *words(char *to, size_t size, const uint8_t *call)
{
    static const char *const names[] = { "?", "allreduce", "reduce", "broadcast" };
    unsigned long long elements = (unsigned long long)get32(call + 12) << 32 | get32(call + 16);
    snprintf(to, size, "%s of %llu elements, type %u, operation %u, root %u, %u packets",
             names[call[0] <= BROADCAST ? call[0] : 0], elements, call[2], call[1], get16(call + 4),
             get32(call + 8));
    return to;
}

static const char *const start_anew =
    "start all ranks anew, and install the rule with their new lines and a higher generation";

/* Checks the control result: all ranks made the same call, or it names two that differ. */
static void check_control(const struct rank *r, const struct call *call, const struct ibv_wc *wc,
                          const uint8_t *b)
{
    uint8_t own[CALL_BYTES];
    char first[160], second[160];
    write_call(own, call);
    if (!(wc->wc_flags & IBV_WC_WITH_IMM) || ntohl(wc->imm_data) != IMMEDIATE || wc->byte_len != CONTROL_BYTES
        || get32(b) != IMMEDIATE || get32(b + 4) != r->sequence)
        fail(0, start_anew,
             "a message of %u bytes came where the control result of collective %u was due", wc->byte_len,
             r->sequence);
    if (b[10] != 0)
        fail(0, "call the same at all ranks; start all anew, and install the rule with a higher generation",
             "ranks disagree on collective %u: rank %u said %s; rank %u said %s", r->sequence, get16(b + 8),
             words(first, sizeof first, b + 12), get16(b + 32), words(second, sizeof second, b + 36));
    if (memcmp(b + 12, own, CALL_BYTES) != 0)
        fail(0, start_anew,
             "the control result says %s, this rank has said %s", words(first, sizeof first, b + 12),
             words(second, sizeof second, own));
}

/* ---- The RNIC ---- */

/* Takes a GID if it is an IPv4 address over RoCEv2 and matches --ip: it gives the rule's ip and mac. */
static bool take_gid(struct rank *r, const struct ibv_gid_entry *gid)
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    char interface[IF_NAMESIZE], path[64];
    inet_ntop(AF_INET, gid->gid.raw + 12, r->address, sizeof r->address);
    if (gid->gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(gid->gid.raw, mapped, sizeof mapped) != 0
        || (r->ip && strcmp(r->ip, r->address) != 0) || !if_indextoname(gid->ndev_ifindex, interface))
        return false;
    snprintf(path, sizeof path, "/sys/class/net/%s/address", interface);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%17s", r->mac) != 1)
        fail(errno, "give the address of another interface: --ip ADDRESS", "reading %s", path);
    fclose(file);
    return true;
}

/* Opens the first device with such a GID. */
static void open_device(struct rank *r)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count; i++) {
        struct ibv_port_attr port;
        struct ibv_gid_entry gid;
        r->context = ibv_open_device(list[i]);
        if (!r->context || ibv_query_port(r->context, PORT, &port))
            continue;
        for (int index = 0; index < port.gid_tbl_len && index < 256; index++) {
            if (ibv_query_gid_ex(r->context, PORT, (uint32_t)index, &gid, 0) || !take_gid(r, &gid))
                continue;
            if (128u << port.active_mtu < r->pmtu)
                fail(0, "raise the interface's MTU (4200 for 4096), or take a smaller pmtu at all ranks and in the"
                     " rule", "%s has a path MTU of %u, not %u", r->address, 128u << port.active_mtu, r->pmtu);
            r->gid_index = (uint8_t)index;
            ibv_free_device_list(list);
            return;
        }
        ibv_close_device(r->context);
    }
    fail(0, "ibv_devinfo -v shows devices and their GIDs. Without an RNIC: rdma link add rxe0 type rxe netdev IF",
         "no RDMA device has %s over RoCEv2", r->ip ? r->ip : "an IPv4 address");
}

static void post_receive(const struct rank *r, uint64_t slot)
{
    struct ibv_sge place = { .addr = (uintptr_t)(r->slots + slot * r->slot_bytes), .length = r->slot_bytes,
                             .lkey = r->memory->lkey };
    struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &place, .num_sge = 1 }, *bad;
    int error = ibv_post_recv(r->qp, &wr, &bad);
    if (error)
        fail(error, "see the kernel's log: dmesg", "posting a receive");
}

/* Creates the queue pair and its memory, and posts all receives before anything is sent. */
static void create_qp(struct rank *r)
{
    const char *next = "ulimit -l bounds registered memory; ibv_devinfo -v shows the device's limits";
    uint32_t window_messages = (r->window + r->message_packets - 1) / r->message_packets;
    r->message_bytes = r->message_packets * r->pmtu;
    r->slot_bytes = r->message_bytes > CONTROL_BYTES ? r->message_bytes : CONTROL_BYTES;
    /* Twice a window of messages and a control message: results arrive while earlier ones are handled. */
    r->slot_count = r->sends_max = 2 * (window_messages + 1);
    size_t data_bytes = r->elements * ELEMENT_BYTES;
    size_t bytes = CONTROL_BYTES + data_bytes + (size_t)r->slot_count * r->slot_bytes;
    r->control = calloc(1, bytes);
    if (!r->control)
        fail(errno, "take fewer --elements", "%zu bytes of memory", bytes);
    r->data = r->control + CONTROL_BYTES;
    r->slots = r->data + data_bytes;
    r->pd = ibv_alloc_pd(r->context);
    r->memory = r->pd ? ibv_reg_mr(r->pd, r->control, bytes, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!r->memory)
        fail(errno, next, "registering %zu bytes of memory", bytes);
    r->channel = ibv_create_comp_channel(r->context);
    r->cq = r->channel ? ibv_create_cq(r->context, (int)(2 * r->slot_count), NULL, r->channel, 0) : NULL;
    if (!r->cq)
        fail(errno, next, "creating a completion queue");
    struct ibv_qp_init_attr create = {
        .send_cq = r->cq, .recv_cq = r->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = r->sends_max, .max_recv_wr = r->slot_count, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    r->qp = ibv_create_qp(r->pd, &create);
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
    int error = !r->qp ? errno : ibv_modify_qp(r->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT
                                                                 | IBV_QP_ACCESS_FLAGS);
    if (error)
        fail(error, next, "creating a queue pair");
    for (uint32_t slot = 0; slot < r->slot_count; slot++)
        post_receive(r, slot);
    /* Random, so that packets of an earlier connection are not accepted. */
    uint32_t psn[2];
    if (getrandom(psn, sizeof psn, 0) != sizeof psn)
        fail(errno, "try again", "drawing the first PSNs");
    r->sq_psn = psn[0] & 0xffffff;
    r->rq_psn = psn[1] & 0xffffff;
}

/* Prints this rank's line of the rule, and waits for Enter after its installation. */
static void wait_for_rule(const struct rank *r)
{
    printf("host = { rank = %u, name = \"rank%u\", ip = \"%s\", qpn = 0x%x, mac = \"%s\", sq_psn = 0x%x, "
           "rq_psn = 0x%x }\n", r->number, r->number, r->address, r->qp->qp_num, r->mac, r->sq_psn, r->rq_psn);
    fflush(stdout);
    fputs("put this line into the rule file, install the rule at the switch, then press Enter here\n", stderr);
    for (int c; (c = getchar()) != '\n';)
        if (c == EOF)
            fail(0, "run it where it can read a line", "stdin ended before Enter");
}

/* Connects to <McstID, QPN 1>. The kernel resolves the McstID by ARP; the switch answers when the rule is installed. */
static void connect_qp(const struct rank *r)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (128u << mtu < r->pmtu)
        mtu++;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = GROUP_QPN, .rq_psn = r->rq_psn,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .sgid_index = r->gid_index, .hop_limit = 64 } },
    };
    attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
    memcpy(attr.ah_attr.grh.dgid.raw + 12, &r->group, 4);
    int error = ibv_modify_qp(r->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                              | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error)
        fail(error, "castnet group list --agent URL shows whether the switch has the group. A McstID outside the"
             " interface's subnet may need ip route add MCSTID/32 dev IF", "connecting to %s", inet_ntoa(r->group));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = r->sq_psn, .timeout = (uint8_t)r->timeout, .retry_cnt = 7,
        .rnr_retry = 7, .max_rd_atomic = 1,
    };
    error = ibv_modify_qp(r->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                          | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error)
        fail(error, "see the kernel's log: dmesg", "making the queue pair ready to send");
}

static void post_send(struct rank *r, const uint8_t *from, uint32_t bytes, bool is_control)
{
    struct ibv_sge place = { .addr = (uintptr_t)from, .length = bytes, .lkey = r->memory->lkey };
    struct ibv_send_wr wr = {
        .wr_id = is_control, .sg_list = &place, .num_sge = 1,
        /* Data is a plain SEND. */
        .opcode = is_control ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
        .imm_data = is_control ? htonl(IMMEDIATE) : 0,
    }, *bad;
    int error = ibv_post_send(r->qp, &wr, &bad);
    if (error)
        fail(error, "see the kernel's log: dmesg", "posting a send");
    r->unacknowledged++;
}

/* The next completion; sleeps until there is one. */
static struct ibv_wc next_completion(const struct rank *r)
{
    struct ibv_wc wc;
    for (bool asked = false;;) {
        int count = ibv_poll_cq(r->cq, 1, &wc);
        if (count < 0)
            fail(0, "see the kernel's log: dmesg", "the completion queue has failed");
        if (count > 0)
            break;
        if (!asked) {
            /* Before the next poll, or a completion in between would be missed. */
            ibv_req_notify_cq(r->cq, 0);
            asked = true;
            continue;
        }
        struct pollfd fd = { .fd = r->channel->fd, .events = POLLIN };
        struct ibv_cq *cq;
        void *context;
        int ready = poll(&fd, 1, PATIENCE_S * 1000);
        if (ready == 0)
            fail(0, "castnet group show NAME --agent URL: who is waited for; castnet drops: what was refused",
                 "nothing came for %d s in collective %u", PATIENCE_S, r->sequence);
        if (ready > 0 && ibv_get_cq_event(r->channel, &cq, &context) == 0)
            ibv_ack_cq_events(cq, 1);
        asked = false;
    }
    if (wc.status == IBV_WC_RETRY_EXC_ERR)
        fail(0, "is the rule installed, with this start's line at this host's port? is its ack_timeout_us that of"
             " --timeout? castnet drops shows what the switch refused", "the switch has not answered");
    if (wc.status == IBV_WC_LOC_LEN_ERR)
        fail(0, "give all ranks and the rule the same pmtu and message_packets", "a message came that is too long");
    if (wc.status != IBV_WC_SUCCESS)
        fail(0, "castnet drops and castnet events of the switch may say why", "%s", ibv_wc_status_str(wc.status));
    return wc;
}

/* ---- Collectives ---- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* One collective: sends from r->data, receives into result. Returns when everything is received and everything sent is
   acknowledged. */
static void collective(struct rank *r, uint8_t primitive, uint16_t root, uint8_t type, uint64_t elements,
                       void *result)
{
    uint64_t bytes = elements * ELEMENT_BYTES, packets = (bytes + r->pmtu - 1) / r->pmtu;
    uint64_t messages = (packets + r->message_packets - 1) / r->message_packets;
    struct call call = { primitive, SUM, type, root, (uint32_t)packets, elements };
    bool is_root = r->number == root;
    bool sends = primitive == ALLREDUCE || is_root == (primitive == BROADCAST);
    bool receives = primitive == ALLREDUCE || !sends;
    uint64_t to_send = sends ? messages : 0, to_receive = receives ? messages : 0;
    uint64_t sent = 0, acknowledged = 0, received = 0;
    bool agreed = false;

    write_control(r, &call);
    post_send(r, r->control, CONTROL_BYTES, true);
    while (!agreed || sent < to_send || received < to_receive || r->unacknowledged > 0) {
        /* Packets are numbered: 0 is the control message, data follows. Nothing goes out that is a window or more
           above the lowest number that is not finished here. */
        uint64_t finished = least((receives ? received : acknowledged) * r->message_packets, packets);
        uint64_t lowest = agreed ? 1 + finished : 0;
        while (sent < to_send && r->unacknowledged < r->sends_max
               && 1 + least((sent + 1) * r->message_packets, packets) <= lowest + r->window) {
            uint64_t at = sent++ * r->message_bytes;
            post_send(r, r->data + at, (uint32_t)least(r->message_bytes, bytes - at), false);
        }
        struct ibv_wc wc = next_completion(r);
        if (!(wc.opcode & IBV_WC_RECV)) {
            r->unacknowledged--;
            acknowledged += wc.wr_id == 0;
            continue;
        }
        const uint8_t *message = r->slots + wc.wr_id * r->slot_bytes;
        if (!agreed) {
            check_control(r, &call, &wc, message);
            agreed = true;
        } else {
            uint64_t at = received * r->message_bytes;
            if (received++ >= to_receive || wc.byte_len != least(r->message_bytes, bytes - at)
                || (wc.wc_flags & IBV_WC_WITH_IMM))
                fail(0, "give all ranks and the rule the same pmtu and message_packets",
                     "a message of %u bytes does not fit collective %u", wc.byte_len, r->sequence);
            memcpy((uint8_t *)result + at, message, wc.byte_len);
        }
        post_receive(r, wc.wr_id);
    }
    r->sequence++;
}

/* Element i of a rank: small integers, which f32 adds exactly in any order. */
static int32_t value(unsigned rank, uint64_t i) { return (int32_t)(rank + 1) * ((int32_t)(i % 1000) - 500); }

static uint32_t element(const struct rank *r, int32_t whole)
{
    float real = (float)whole;
    uint32_t bits = (uint32_t)whole;
    if (r->type == F32)
        memcpy(&bits, &real, sizeof bits);
    return bits;
}

static void check(const struct rank *r, const char *name, const uint32_t *result, bool sum, unsigned root)
{
    for (uint64_t i = 0; i < r->elements; i++) {
        int32_t must = sum ? 0 : value(root, i);
        for (unsigned rank = 0; sum && rank < r->size; rank++)
            must += value(rank, i);
        if (result[i] != element(r, must))
            fail(0, "castnet events and castnet counters of the switch; a result is never wrong in part",
                 "%s: element %llu is 0x%x, not 0x%x", name, (unsigned long long)i, result[i], element(r, must));
    }
}

/* The root of a Reduce gets the sum of the other ranks, and adds its own contribution. */
static void add_own(const struct rank *r, uint32_t *result)
{
    for (uint64_t i = 0; i < r->elements; i++) {
        int32_t own = value(r->number, i);
        float sum;
        memcpy(&sum, result + i, sizeof sum);
        sum += (float)own;
        if (r->type == F32)
            memcpy(result + i, &sum, sizeof sum);
        else
            result[i] += (uint32_t)own;
    }
}

static void run(struct rank *r)
{
    uint16_t last = (uint16_t)(r->size - 1);
    uint32_t *result = calloc(r->elements ? r->elements : 1, ELEMENT_BYTES);
    if (!result)
        fail(errno, "take fewer --elements", "memory for the result");
    for (uint64_t i = 0; i < r->elements; i++) {
        uint32_t bits = element(r, value(r->number, i));
        memcpy(r->data + i * ELEMENT_BYTES, &bits, sizeof bits);
    }
    collective(r, ALLREDUCE, 0, r->type, r->elements, result);
    check(r, "allreduce", result, true, 0);
    collective(r, REDUCE, last, r->type, r->elements, result);
    if (r->number == last) {
        add_own(r, result);
        check(r, "reduce", result, true, last);
    }
    collective(r, BROADCAST, 0, r->type, r->elements, result);
    if (r->number != 0)
        check(r, "broadcast", result, false, 0);
    /* The barrier: an AllReduce without elements. After its result all ranks have finished everything before it, and no
       rank needs an answer of this queue pair. */
    collective(r, ALLREDUCE, 0, U8, 0, result);
    ibv_destroy_qp(r->qp);
    printf("rank %u of %u: allreduce, reduce, broadcast of %llu %s and a barrier: all elements are right\n",
           r->number, r->size, (unsigned long long)r->elements, r->type == F32 ? "f32" : "i32");
    free(result);
}

static const char usage[] =
    "One rank of a collective group: allreduce, reduce, broadcast and a barrier on one queue pair, all checked.\n\n"
    "  --rank N             this rank, from 0\n"
    "  --size N             number of ranks\n"
    "  --group IP           the group's McstID\n"
    "  --type f32|i32       data type [i32]\n"
    "  --elements N         number of elements [100000]\n"
    "  --pmtu BYTES         payload of a full packet, as the rule's pmtu [1024]\n"
    "  --message-packets N  packets of a full message, as the rule's message_packets [16]\n"
    "  --window N           packets in flight: half the rule's slots at most [64]\n"
    "  --timeout T          of the queue pair, 4.096 us * 2^T, as the rule's ack_timeout_us [14, which is 67108]\n"
    "  --ip ADDRESS         of the RNIC [the first that has an IPv4 address]\n\n"
    "docs/write-your-own-rank.md explains it step by step.\n";

static unsigned long long number(const char *name, const char *text, unsigned long long min, unsigned long long max)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (errno || end == text || *end || *text == '-' || value < min || value > max)
        fail(0, "./rank --help", "--%s %s: a number from %llu to %llu is wanted", name, text, min, max);
    return value;
}

int main(int argc, char **argv)
{
    enum { RANK, SIZE, GROUP, TYPE, ELEMENTS, PMTU, MESSAGE, WINDOW, TIMEOUT, IP, HELP };
    static const struct option known[] = {
        { "rank", 1, NULL, RANK },       { "size", 1, NULL, SIZE }, { "group", 1, NULL, GROUP },
        { "type", 1, NULL, TYPE },       { "elements", 1, NULL, ELEMENTS }, { "pmtu", 1, NULL, PMTU },
        { "message-packets", 1, NULL, MESSAGE }, { "window", 1, NULL, WINDOW },
        { "timeout", 1, NULL, TIMEOUT }, { "ip", 1, NULL, IP }, { "help", 0, NULL, HELP }, { NULL, 0, NULL, 0 },
    };
    struct rank r = { .number = UINT32_MAX, .pmtu = 1024, .message_packets = 16, .window = 64, .timeout = 14,
                      .elements = 100000, .type = I32 };
    for (int option, at; (option = getopt_long(argc, argv, "", known, &at)) != -1;) {
        const char *name = option == '?' ? "" : known[at].name;
        switch (option) {
        case RANK: r.number = (unsigned)number(name, optarg, 0, 1023); break;
        case SIZE: r.size = (unsigned)number(name, optarg, 2, 64); break;
        case GROUP:
            if (inet_pton(AF_INET, optarg, &r.group) != 1)
                fail(0, "./rank --help", "--group %s is no IPv4 address", optarg);
            break;
        case TYPE:
            if (strcmp(optarg, "f32") != 0 && strcmp(optarg, "i32") != 0)
                fail(0, "./rank --help", "--type %s: f32 or i32 is wanted", optarg);
            r.type = *optarg == 'f' ? F32 : I32;
            break;
        case ELEMENTS: r.elements = number(name, optarg, 0, 1u << 28); break;
        case PMTU: r.pmtu = (unsigned)number(name, optarg, 256, 4096); break;
        case MESSAGE: r.message_packets = (unsigned)number(name, optarg, 1, 16384); break;
        case WINDOW: r.window = (unsigned)number(name, optarg, 2, 16384); break;
        case TIMEOUT: r.timeout = (unsigned)number(name, optarg, 1, 31); break;
        case IP: r.ip = optarg; break;
        case HELP: fputs(usage, stdout); return 0;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (r.number >= r.size || r.group.s_addr == 0)
        fail(0, "./rank --help", "--rank, --size and --group are needed, the rank below the size");
    if ((r.pmtu & (r.pmtu - 1)) != 0 || r.message_packets > r.window)
        fail(0, "./rank --help", "--pmtu is a power of two, and a message of --message-packets fits the --window");
    open_device(&r);
    create_qp(&r);
    wait_for_rule(&r);
    connect_qp(&r);
    run(&r);
    return 0;
}
