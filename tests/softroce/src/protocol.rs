//! What a test and its peers say to each other: one JSON object a line, each question with one answer, in order.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// SEND with immediate.
    Send,
    /// WRITE with immediate.
    Write,
}

impl Op {
    /// Both, in the order in which tests take them.
    pub const BOTH: [Self; 2] = [Self::Send, Self::Write];

    /// Its name in group names and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
        }
    }
}

/// A question to a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A QP, and `bytes` of memory that it sends from, receives into, and that the remote may write.
    Create {
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Connects the QP.
    Connect {
        /// The remote's address: a McstID, or a host's.
        ip: String,
        /// The remote's QP; 1 for a group.
        qpn: u32,
        /// PSN of the first packet sent.
        sq_psn: u32,
        /// PSN of the first packet expected.
        rq_psn: u32,
        /// Payload bytes of a full packet.
        pmtu: u32,
        /// Time-out exponent.
        timeout: u8,
        /// Retries without progress; 7 for ever.
        retry: u8,
        /// Code of the wait that it asks for where no receive is posted.
        rnr_timer: u8,
    },
    /// Fills `length` bytes of the memory, and some beyond, with a mark.
    Mark {
        /// Bytes.
        length: usize,
    },
    /// Posts a receive of `length` bytes at the memory's start.
    Receive {
        /// Bytes.
        length: usize,
    },
    /// Posts a message of `length` bytes drawn from `seed`.
    Post {
        /// How it travels.
        op: Op,
        /// Bytes.
        length: usize,
        /// What the bytes are drawn from.
        seed: u64,
        /// The immediate.
        imm: u32,
        /// Where a WRITE goes.
        va: u64,
        /// Key of a WRITE.
        rkey: u32,
    },
    /// Waits for the next send that ends.
    AwaitSent {
        /// How long, in milliseconds.
        within_ms: u64,
    },
    /// Waits for the next receive that ends, and tells the SHA-256 of the first `length` bytes of the memory.
    AwaitReceived {
        /// Bytes that are looked at.
        length: usize,
        /// How long, in milliseconds.
        within_ms: u64,
    },
    /// Gives the QP and its memory up.
    Destroy,
    /// Ends the peer.
    End,
}

/// How a work request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// `Success`, or what the device said.
    pub status: String,
    /// Bytes, as the completion has them.
    pub bytes: u32,
    /// The immediate that came with it.
    pub imm: Option<u32>,
    /// SHA-256 of the memory; of receives.
    pub digest: Option<String>,
    /// Whether the memory beyond is as it was; of receives.
    pub untouched_beyond: bool,
    /// When, in nanoseconds since the peer began.
    pub at_ns: u64,
}

impl Ended {
    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.status == "Success"
    }
}

/// A peer's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The first line of a peer, before any question.
    Hello {
        /// Its address.
        ip: String,
        /// Its Ethernet address.
        mac: String,
        /// The largest path MTU of its device.
        pmtu: u32,
    },
    /// To [`Ask::Create`].
    Created {
        /// The QP's number.
        qpn: u32,
        /// Virtual address of the memory.
        va: u64,
        /// Its key for the remote.
        rkey: u32,
    },
    /// Done; nothing to say.
    Done,
    /// To the questions that wait. `None`: it did not end in time.
    Ended(Option<Ended>),
    /// It could not be done.
    Failed(String),
}

/// What memory is filled with before a receive, and what must still be there beyond what was received.
pub const MARK: u8 = 0xEE;
/// Bytes of memory beyond a message that are looked at.
pub const BEYOND: usize = 64;

/// `length` bytes drawn from `seed` (splitmix64): no two messages of a test are alike. Of seed 0, zeros.
pub fn payload(seed: u64, length: usize) -> Vec<u8> {
    if seed == 0 {
        return vec![0; length];
    }
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
