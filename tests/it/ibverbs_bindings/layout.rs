//! Compares sizes, offsets and values of our declarations with the real header, using a C compiler.

use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use ibverbs_sys as ffi;

/// A C expression, our value of it, and whether C's may be larger (a structure of which only the
/// beginning is declared).
struct Line {
    c: String,
    ours: usize,
    grows: bool,
}

fn line(c: impl Into<String>, ours: usize) -> Line {
    Line { c: c.into(), ours, grows: false }
}

/// Size of a field.
fn width<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Size, alignment, and offset and size of each field.
macro_rules! structure {
    ($lines:ident, $name:ident { $($field:ident),* $(,)? } $($grows:ident)?) => {
        let c = concat!("struct ", stringify!($name));
        let grows = [$(stringify!($grows))?].contains(&"grows");
        $lines.push(Line { c: format!("sizeof({c})"), ours: size_of::<ffi::$name>(), grows });
        $lines.push(line(format!("_Alignof({c})"), align_of::<ffi::$name>()));
        $(
            let field = stringify!($field);
            $lines.push(line(format!("offsetof({c}, {field})"), offset_of!(ffi::$name, $field)));
            $lines.push(line(format!("sizeof((({c} *)0)->{field})"), width(|s: &ffi::$name| &s.$field)));
        )*
    };
}

macro_rules! numbers {
    ($lines:ident, $module:ident: $($name:ident)*) => {
        $( $lines.push(line(stringify!($name), ffi::$module::$name as usize)); )*
    };
}

macro_rules! bits {
    ($lines:ident, $module:ident: $($name:ident)*) => {
        $( $lines.push(line(stringify!($name), ffi::$module::$name.0 as usize)); )*
    };
}

fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    lines.push(line("sizeof(union ibv_gid)", size_of::<ffi::ibv_gid>()));
    lines.push(line("_Alignof(union ibv_gid)", align_of::<ffi::ibv_gid>()));
    structure!(lines, ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex });
    structure!(lines, ibv_device { node_type, transport_type, name, dev_name } grows);
    structure!(lines, ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv });
    structure!(lines, ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors } grows);
    structure!(
        lines,
        ibv_device_attr {
            fw_ver,
            node_guid,
            sys_image_guid,
            max_mr_size,
            page_size_cap,
            vendor_id,
            vendor_part_id,
            hw_ver,
            max_qp,
            max_qp_wr,
            device_cap_flags,
            max_sge,
            max_sge_rd,
            max_cq,
            max_cqe,
            max_mr,
            max_pd,
            max_qp_rd_atom,
            max_ee_rd_atom,
            max_res_rd_atom,
            max_qp_init_rd_atom,
            max_ee_init_rd_atom,
            atomic_cap,
            max_ee,
            max_rdd,
            max_mw,
            max_raw_ipv6_qp,
            max_raw_ethy_qp,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_ah,
            max_fmr,
            max_map_per_fmr,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_pkeys,
            local_ca_ack_delay,
            phys_port_cnt,
        }
    );
    structure!(lines, ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid,
        sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2,
    } grows);
    structure!(lines, ibv_pd { context, handle });
    structure!(lines, ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    structure!(lines, ibv_comp_channel { context, fd, refcnt });
    structure!(lines, ibv_cq { context, channel, cq_context, handle, cqe } grows);
    structure!(
        lines,
        ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err,
            byte_len,
            imm_data,
            qp_num,
            src_qp,
            wc_flags,
            pkey_index,
            slid,
            sl,
            dlid_path_bits,
        }
    );
    structure!(lines, ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    structure!(lines, ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    structure!(lines, ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
    structure!(lines, ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    structure!(
        lines,
        ibv_qp_attr {
            qp_state,
            cur_qp_state,
            path_mtu,
            path_mig_state,
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            cap,
            ah_attr,
            alt_ah_attr,
            pkey_index,
            alt_pkey_index,
            en_sqd_async_notify,
            sq_draining,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry,
            alt_port_num,
            alt_timeout,
            rate_limit,
        }
    );
    structure!(lines, ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state } grows);
    structure!(lines, ibv_sge { addr, length, lkey });
    structure!(lines, ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type });
    // C's unnamed unions, by one of their fields.
    lines.push(line("offsetof(struct ibv_send_wr, imm_data)", offset_of!(ffi::ibv_send_wr, __bindgen_anon_1)));
    lines.push(line("offsetof(struct ibv_send_wr, bind_mw)", offset_of!(ffi::ibv_send_wr, __bindgen_anon_2)));
    let wr = offset_of!(ffi::ibv_send_wr, wr);
    let rdma = |field: usize| wr + field;
    lines.push(line(
        "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)",
        rdma(offset_of!(ffi::ibv_send_wr_rdma, remote_addr)),
    ));
    lines.push(line("offsetof(struct ibv_send_wr, wr.rdma.rkey)", rdma(offset_of!(ffi::ibv_send_wr_rdma, rkey))));
    lines.push(line("offsetof(struct ibv_send_wr, wr.atomic.rkey)", rdma(offset_of!(ffi::ibv_send_wr_atomic, rkey))));
    structure!(lines, ibv_recv_wr { wr_id, next, sg_list, num_sge });
    structure!(lines, ibv_async_event { element, event_type });
    for (name, ours) in [
        ("IBV_GID_TYPE_IB", ffi::IBV_GID_TYPE_IB),
        ("IBV_GID_TYPE_ROCE_V1", ffi::IBV_GID_TYPE_ROCE_V1),
        ("IBV_GID_TYPE_ROCE_V2", ffi::IBV_GID_TYPE_ROCE_V2),
        ("IBV_LINK_LAYER_UNSPECIFIED", ffi::IBV_LINK_LAYER_UNSPECIFIED.into()),
        ("IBV_LINK_LAYER_INFINIBAND", ffi::IBV_LINK_LAYER_INFINIBAND.into()),
        ("IBV_LINK_LAYER_ETHERNET", ffi::IBV_LINK_LAYER_ETHERNET.into()),
    ] {
        lines.push(line(name, ours as usize));
    }
    numbers!(lines, ibv_mtu: IBV_MTU_256 IBV_MTU_512 IBV_MTU_1024 IBV_MTU_2048 IBV_MTU_4096);
    numbers!(lines, ibv_port_state: IBV_PORT_NOP IBV_PORT_DOWN IBV_PORT_INIT IBV_PORT_ARMED IBV_PORT_ACTIVE IBV_PORT_ACTIVE_DEFER);
    numbers!(lines, ibv_event_type: IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
        IBV_EVENT_WQ_FATAL);
    numbers!(lines, ibv_wc_status: IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR
        IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR
        IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
        IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR IBV_WC_INV_EEC_STATE_ERR
        IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE);
    numbers!(lines, ibv_wc_opcode: IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ);
    numbers!(lines, ibv_qp_type: IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD);
    numbers!(lines, ibv_qp_state: IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR
        IBV_QPS_UNKNOWN);
    numbers!(lines, ibv_wr_opcode: IBV_WR_RDMA_WRITE IBV_WR_SEND IBV_WR_RDMA_READ);
    bits!(lines, ibv_access_flags: IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC
        IBV_ACCESS_RELAXED_ORDERING);
    bits!(lines, ibv_qp_attr_mask: IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU
        IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN
        IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_CAP IBV_QP_DEST_QPN);
    bits!(lines, ibv_send_flags: IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE);
    lines
}

/// `MCCTL_VERBS_INCLUDE` names a header folder other than the compiler's own.
#[test]
#[ignore = "needs the header of libibverbs"]
fn declarations_match_the_verbs_header() {
    let include = std::env::var("MCCTL_VERBS_INCLUDE").unwrap_or_else(|_| "/usr/include".to_owned());
    let header = Path::new(&include).join("infiniband/verbs.h");
    assert!(header.exists(), "{} not found (Debian package: libibverbs-dev)", header.display());
    let lines = lines();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("layout.c");
    let program = dir.path().join("layout");
    let mut text =
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n".to_owned();
    for line in &lines {
        text.push_str(&format!("printf(\"%llu\\n\", (unsigned long long)({}));\n", line.c));
    }
    text.push_str("return 0;\n}\n");
    fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-std=gnu11", "-isystem", &include, "-o"]).arg(&program).arg(&source).output();
    let built = built.expect("a C compiler (Debian package: gcc)");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let told = Command::new(&program).output().unwrap();
    let told: Vec<usize> = String::from_utf8(told.stdout).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(told.len(), lines.len());
    let wrong: Vec<String> = lines
        .iter()
        .zip(told)
        .filter(|(line, theirs)| if line.grows { line.ours > *theirs } else { line.ours != *theirs })
        .map(|(line, theirs)| format!("{} is {theirs}, ours {}", line.c, line.ours))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines.len() > 350, "only {} values compared", lines.len());
}
