//! Compares the structures and constants with those that a C compiler reads from <infiniband/verbs.h>.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use super::*;

/// A C program that prints the value of each expression on its own line.
fn program(all: &[(String, u64)]) -> String {
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in all {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    printf(\"%llu\\n\", (unsigned long long)({expression}));"
        );
    }
    text + "    return 0;\n}\n"
}

#[test]
fn shapes_and_numbers_are_those_of_the_header() {
    let header = Path::new("/usr/include/infiniband/verbs.h");
    if !header.is_file() {
        castnet_wrap_up::skip(
            "the layout of libibverbs",
            &format!("no {} (apt install libibverbs-dev)", header.display()),
        );
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let mut all = layout();
    all.extend(NUMBERS.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    std::fs::write(&source, program(&all)).expect("written");
    let compiled = match Command::new("cc").arg("-o").arg(&binary).arg(&source).output() {
        Ok(compiled) => compiled,
        Err(error) => {
            castnet_wrap_up::skip(
                "the layout of libibverbs",
                &format!("no C compiler: cc: {error} (apt install gcc libc6-dev)"),
            );
            return;
        }
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&binary).output().expect("it runs");
    let theirs: Vec<u64> = String::from_utf8_lossy(&printed.stdout)
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(theirs.len(), all.len());
    let wrong: Vec<_> = all
        .iter()
        .zip(&theirs)
        .filter(|((_, ours), theirs)| ours != *theirs)
        .map(|((what, ours), theirs)| format!("{what}: header {theirs}, here {ours}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sizes and offsets: the C type or field, and the value in Rust.
fn layout() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    macro_rules! offsets {
        ($ty:ident, $c:literal, { $($field:ident = $cf:literal),* $(,)? }) => {
            $(all.push((
                format!("offsetof(struct {}, {})", $c, $cf),
                offset_of!($ty, $field) as u64,
            ));)*
        };
    }
    macro_rules! sizes {
        ($($ty:ident = $c:literal),* $(,)?) => {
            $(all.push((format!("sizeof({})", $c), size_of::<$ty>() as u64));)*
        };
    }
    // Only allocated structures need their full size. Those of the library are read through pointers.
    sizes! {
        Gid = "union ibv_gid", DeviceAttr = "struct ibv_device_attr", PortAttr = "struct ibv_port_attr",
        AsyncEvent = "struct ibv_async_event", Wc = "struct ibv_wc", GlobalRoute = "struct ibv_global_route",
        AhAttr = "struct ibv_ah_attr", QpCap = "struct ibv_qp_cap", QpInitAttr = "struct ibv_qp_init_attr",
        QpAttr = "struct ibv_qp_attr", Sge = "struct ibv_sge", SendWr = "struct ibv_send_wr",
        RecvWr = "struct ibv_recv_wr", ContextOps = "struct ibv_context_ops", Mr = "struct ibv_mr",
        CompChannel = "struct ibv_comp_channel",
    }
    offsets!(Context, "ibv_context", { device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd" });
    offsets!(ContextOps, "ibv_context_ops", {
        poll_cq = "poll_cq", req_notify_cq = "req_notify_cq", post_send = "post_send", post_recv = "post_recv",
    });
    offsets!(CompChannel, "ibv_comp_channel", { context = "context", fd = "fd", refcnt = "refcnt" });
    offsets!(Cq, "ibv_cq", {
        context = "context", channel = "channel", cq_context = "cq_context", handle = "handle", cqe = "cqe",
    });
    offsets!(Qp, "ibv_qp", {
        context = "context", qp_context = "qp_context", pd = "pd", send_cq = "send_cq", recv_cq = "recv_cq",
        srq = "srq", handle = "handle", qp_num = "qp_num", state = "state", qp_type = "qp_type",
    });
    offsets!(Mr, "ibv_mr", {
        context = "context", pd = "pd", addr = "addr", length = "length", handle = "handle", lkey = "lkey", rkey = "rkey",
    });
    offsets!(DeviceAttr, "ibv_device_attr", {
        fw_ver = "fw_ver", node_guid = "node_guid", sys_image_guid = "sys_image_guid", max_mr_size = "max_mr_size",
        page_size_cap = "page_size_cap", vendor_id = "vendor_id", vendor_part_id = "vendor_part_id",
        hw_ver = "hw_ver", max_qp = "max_qp", max_qp_wr = "max_qp_wr", device_cap_flags = "device_cap_flags",
        max_sge = "max_sge", max_sge_rd = "max_sge_rd", max_cq = "max_cq", max_cqe = "max_cqe", max_mr = "max_mr",
        max_pd = "max_pd", max_pkeys = "max_pkeys", local_ca_ack_delay = "local_ca_ack_delay",
        phys_port_cnt = "phys_port_cnt",
    });
    offsets!(PortAttr, "ibv_port_attr", {
        state = "state", max_mtu = "max_mtu", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len",
        port_cap_flags = "port_cap_flags", max_msg_sz = "max_msg_sz", bad_pkey_cntr = "bad_pkey_cntr",
        qkey_viol_cntr = "qkey_viol_cntr", pkey_tbl_len = "pkey_tbl_len", lid = "lid", sm_lid = "sm_lid", lmc = "lmc",
        max_vl_num = "max_vl_num", sm_sl = "sm_sl", subnet_timeout = "subnet_timeout",
        init_type_reply = "init_type_reply", active_width = "active_width", active_speed = "active_speed",
        phys_state = "phys_state", link_layer = "link_layer", flags = "flags", port_cap_flags2 = "port_cap_flags2",
    });
    offsets!(AsyncEvent, "ibv_async_event", { element = "element", event_type = "event_type" });
    offsets!(Wc, "ibv_wc", {
        wr_id = "wr_id", status = "status", opcode = "opcode", vendor_err = "vendor_err", byte_len = "byte_len",
        imm_data = "imm_data", qp_num = "qp_num", src_qp = "src_qp", wc_flags = "wc_flags",
        pkey_index = "pkey_index", slid = "slid", sl = "sl", dlid_path_bits = "dlid_path_bits",
    });
    offsets!(GlobalRoute, "ibv_global_route", {
        dgid = "dgid", flow_label = "flow_label", sgid_index = "sgid_index", hop_limit = "hop_limit",
        traffic_class = "traffic_class",
    });
    offsets!(AhAttr, "ibv_ah_attr", {
        grh = "grh", dlid = "dlid", sl = "sl", src_path_bits = "src_path_bits", static_rate = "static_rate",
        is_global = "is_global", port_num = "port_num",
    });
    offsets!(QpCap, "ibv_qp_cap", {
        max_send_wr = "max_send_wr", max_recv_wr = "max_recv_wr", max_send_sge = "max_send_sge",
        max_recv_sge = "max_recv_sge", max_inline_data = "max_inline_data",
    });
    offsets!(QpInitAttr, "ibv_qp_init_attr", {
        qp_context = "qp_context", send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap",
        qp_type = "qp_type", sq_sig_all = "sq_sig_all",
    });
    offsets!(QpAttr, "ibv_qp_attr", {
        qp_state = "qp_state", cur_qp_state = "cur_qp_state", path_mtu = "path_mtu",
        path_mig_state = "path_mig_state", qkey = "qkey", rq_psn = "rq_psn", sq_psn = "sq_psn",
        dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr",
        alt_ah_attr = "alt_ah_attr", pkey_index = "pkey_index", alt_pkey_index = "alt_pkey_index",
        en_sqd_async_notify = "en_sqd_async_notify", sq_draining = "sq_draining", max_rd_atomic = "max_rd_atomic",
        max_dest_rd_atomic = "max_dest_rd_atomic", min_rnr_timer = "min_rnr_timer", port_num = "port_num",
        timeout = "timeout", retry_cnt = "retry_cnt", rnr_retry = "rnr_retry", alt_port_num = "alt_port_num",
        alt_timeout = "alt_timeout", rate_limit = "rate_limit",
    });
    offsets!(Sge, "ibv_sge", { addr = "addr", length = "length", lkey = "lkey" });
    offsets!(SendWr, "ibv_send_wr", {
        wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
        send_flags = "send_flags", imm_data = "imm_data", remote_addr = "wr.rdma.remote_addr",
        rkey = "wr.rdma.rkey", _rest_of_wr = "wr.rdma.rkey) + sizeof(uint32_t", _qp_type = "qp_type",
        _bind_mw = "bind_mw",
    });
    offsets!(RecvWr, "ibv_recv_wr", { wr_id = "wr_id", next = "next", sg_list = "sg_list", num_sge = "num_sge" });
    all
}
