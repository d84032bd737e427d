//! The used part of <infiniband/verbs.h>: structures and constants. Structures that the library allocates have only
//! their first fields here. libibverbs keeps them stable: its soname is libibverbs.so.1 since 2006, and new fields are
//! appended. `sys/layout.rs` compiles a C program against the header and compares every size, offset and number.

#[cfg(test)]
mod layout;

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub(super) struct Device {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(super) struct Pd {
    _opaque: [u8; 0],
}

/// Followed by a mutex of the C library.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

type Unused = Option<unsafe extern "C" fn()>;

/// The provider's functions that the header's inline functions call.
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll_cq: [Unused; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(cq: *mut Cq, solicited_only: c_int) -> c_int>,
    _before_post_send: [Unused; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int>,
    _after: [Unused; 5],
}

#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
}

#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_uint,
    pub(super) qp_type: c_uint,
}

#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// A GID. The header aligns it as two halves of 64 bits.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Gid {
    pub(super) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    _between: [c_int; 20],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AsyncEvent {
    /// A pointer to the object of the event, or a port number in its first bytes.
    pub(super) element: *mut c_void,
    pub(super) event_type: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// The immediate, big endian, or an invalidated key.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// The header has unions after the immediate, of which only the address and key of WRITEs are declared.
#[repr(C)]
#[derive(Default)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// The immediate, big endian.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    _rest_of_wr: [u32; 5],
    _qp_type: u64,
    _bind_mw: [u64; 6],
}

impl SendWr {
    /// A request without bytes, address and key.
    pub(super) fn new(wr_id: u64, opcode: c_uint, send_flags: c_uint) -> Self {
        Self {
            wr_id,
            opcode,
            send_flags,
            ..Self::default()
        }
    }
}

#[repr(C)]
#[derive(Default)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// Declares constants of the header, without their prefix `IBV_`, and a table for the layout test and for logs.
macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        $(pub(super) const $name: c_uint = $value;)*
        pub(super) const NUMBERS: &[(&str, u64)] = &[$((concat!("IBV_", stringify!($name)), $name as u64)),*];
    };
}

numbers! {
    ACCESS_LOCAL_WRITE = 1;
    ACCESS_REMOTE_WRITE = 2;
    QPT_RC = 2;
    QPS_RESET = 0;
    QPS_INIT = 1;
    QPS_RTR = 2;
    QPS_RTS = 3;
    QPS_SQD = 4;
    QPS_SQE = 5;
    QPS_ERR = 6;
    QP_STATE = 1;
    QP_ACCESS_FLAGS = 1 << 3;
    QP_PKEY_INDEX = 1 << 4;
    QP_PORT = 1 << 5;
    QP_AV = 1 << 7;
    QP_PATH_MTU = 1 << 8;
    QP_TIMEOUT = 1 << 9;
    QP_RETRY_CNT = 1 << 10;
    QP_RNR_RETRY = 1 << 11;
    QP_RQ_PSN = 1 << 12;
    QP_MAX_QP_RD_ATOMIC = 1 << 13;
    QP_MIN_RNR_TIMER = 1 << 15;
    QP_SQ_PSN = 1 << 16;
    QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    QP_DEST_QPN = 1 << 20;
    MTU_256 = 1;
    MTU_512 = 2;
    MTU_1024 = 3;
    MTU_2048 = 4;
    MTU_4096 = 5;
    PORT_NOP = 0;
    PORT_DOWN = 1;
    PORT_INIT = 2;
    PORT_ARMED = 3;
    PORT_ACTIVE = 4;
    PORT_ACTIVE_DEFER = 5;
    LINK_LAYER_UNSPECIFIED = 0;
    LINK_LAYER_INFINIBAND = 1;
    LINK_LAYER_ETHERNET = 2;
    WR_RDMA_WRITE = 0;
    WR_RDMA_WRITE_WITH_IMM = 1;
    WR_SEND = 2;
    WR_SEND_WITH_IMM = 3;
    SEND_SIGNALED = 1 << 1;
    SEND_SOLICITED = 1 << 2;
    WC_RECV = 1 << 7;
    WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1;
    WC_WITH_IMM = 1 << 1;
    WC_WITH_INV = 1 << 3;
    WC_SUCCESS = 0;
    WC_LOC_LEN_ERR = 1;
    WC_LOC_QP_OP_ERR = 2;
    WC_LOC_PROT_ERR = 4;
    WC_WR_FLUSH_ERR = 5;
    WC_BAD_RESP_ERR = 7;
    WC_LOC_ACCESS_ERR = 8;
    WC_REM_INV_REQ_ERR = 9;
    WC_REM_ACCESS_ERR = 10;
    WC_REM_OP_ERR = 11;
    WC_RETRY_EXC_ERR = 12;
    WC_RNR_RETRY_EXC_ERR = 13;
    WC_REM_ABORT_ERR = 16;
    WC_FATAL_ERR = 19;
    WC_RESP_TIMEOUT_ERR = 20;
    WC_GENERAL_ERR = 21;
    EVENT_CQ_ERR = 0;
    EVENT_QP_FATAL = 1;
    EVENT_QP_REQ_ERR = 2;
    EVENT_QP_ACCESS_ERR = 3;
    EVENT_COMM_EST = 4;
    EVENT_SQ_DRAINED = 5;
    EVENT_PATH_MIG = 6;
    EVENT_PATH_MIG_ERR = 7;
    EVENT_DEVICE_FATAL = 8;
    EVENT_PORT_ACTIVE = 9;
    EVENT_PORT_ERR = 10;
    EVENT_QP_LAST_WQE_REACHED = 16;
    EVENT_GID_CHANGE = 18;
}
