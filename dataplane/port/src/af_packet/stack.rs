//! Keeps RoCE frames from the kernel's own IP stack, which has no use for what a port has taken, but would route each of
//! them, find no socket, and answer. A classifier at the interface's ingress, right behind the packet sockets, drops
//! them there: measured over a veth pair, a third of what a frame costs.
//!
//! Only frames to UDP port 4791 are dropped, and only while the port is open: the classifier hangs on a descriptor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use castnet_wire::udp::ROCE_PORT;

/// Commands of bpf(2).
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// BPF_PROG_TYPE_SCHED_CLS, and where it is attached: BPF_TCX_INGRESS, Linux 6.6.
const SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;
/// What the classifier answers: on to the next one, or away with it.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// `struct bpf_insn`: operation, registers (destination low, source high), jump, constant.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    jump: i16,
    constant: i32,
}

const fn instruction(code: u8, registers: u8, jump: i16, constant: i32) -> Instruction {
    Instruction {
        code,
        registers,
        jump,
        constant,
    }
}

/// r0 = the byte or the big-endian word of 16 bits at `offset` of the frame. A frame that ends before passes.
const fn byte_at(offset: i32) -> Instruction {
    instruction(0x30, 0, 0, offset)
}
const fn word_at(offset: i32) -> Instruction {
    instruction(0x28, 0, 0, offset)
}
/// Where r0 is not `value`, `by` instructions are left out.
const fn unless(value: i32, by: i16) -> Instruction {
    instruction(0x55, 0, by, value)
}
const fn set_r0(value: i32) -> Instruction {
    instruction(0xb7, 0, 0, value)
}
const EXIT: Instruction = instruction(0x95, 0, 0, 0);

/// IPv4 without options, or IPv6 without extension headers, with UDP to RoCE's port; a VLAN tag lies beside the frame
/// here. What else there is of RoCE goes to the stack as ever.
const PROGRAM: [Instruction; 19] = [
    // r6 = the frame, which the loads go by.
    instruction(0xbf, 0x16, 0, 0),
    word_at(12),
    unless(0x0800, 7),
    byte_at(14),
    unless(0x45, 12),
    byte_at(23),
    unless(17, 10),
    word_at(36),
    unless(ROCE_PORT as i32, 8),
    // To the drop.
    instruction(0x05, 0, 5, 0),
    unless(0x86DD, 6),
    byte_at(20),
    unless(17, 4),
    word_at(56),
    unless(ROCE_PORT as i32, 2),
    set_r0(TCX_DROP),
    EXIT,
    set_r0(TCX_NEXT),
    EXIT,
];

/// The arguments of PROG_LOAD, as far as they are used.
#[repr(C)]
struct Load {
    program_type: u32,
    instructions: u32,
    instructions_at: u64,
    license_at: u64,
    log_level: u32,
    log_size: u32,
    log_at: u64,
    kernel: u32,
    flags: u32,
}

/// The arguments of LINK_CREATE for an ingress.
#[repr(C)]
struct Attach {
    program: u32,
    interface: u32,
    kind: u32,
    flags: u32,
    relative: u32,
    _pad: u32,
    revision: u64,
}

/// While it lives, the kernel's stack sees no RoCE frames that arrive at the interface.
#[derive(Debug)]
pub(super) struct Unseen {
    /// The kernel takes the classifier off with the last descriptor of its link.
    _link: OwnedFd,
}

impl Unseen {
    /// Hides the RoCE frames of an interface.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.6, or the process may not (CAP_NET_ADMIN and CAP_BPF).
    pub(super) fn new(interface: u32) -> io::Result<Self> {
        let load = Load {
            program_type: SCHED_CLS,
            instructions: PROGRAM.len() as u32,
            instructions_at: PROGRAM.as_ptr() as u64,
            license_at: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_at: 0,
            kernel: 0,
            flags: 0,
        };
        let program = bpf(PROG_LOAD, &load)?;
        let attach = Attach {
            program: program.as_raw_fd().cast_unsigned(),
            interface,
            kind: TCX_INGRESS,
            flags: 0,
            relative: 0,
            _pad: 0,
            revision: 0,
        };
        Ok(Self {
            _link: bpf(LINK_CREATE, &attach)?,
        })
    }
}

/// A command that makes a descriptor. `A` is the start of the `union bpf_attr` that belongs to it.
fn bpf<A>(command: libc::c_int, arguments: &A) -> io::Result<OwnedFd> {
    // SAFETY: the pointer and the length describe `arguments`, which outlives the call, as does what it points to
    // (constants); the kernel only reads.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *arguments, size_of::<A>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor (bpf(2) gives them with close-on-exec) that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
