//! The opcode table: headers behind the BTH, position in the message, payload or none. All length checks use it
//! (InfiniBand Architecture Specification, volume 1, 9.2.1 and tables 38 and 39; annex A17 for CNP).

use crate::bth::Bth;
use core::fmt;

/// The kind of queue pair of an opcode: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Congestion notification, for a queue pair of any kind.
    Cnp = 0x80,
    /// Messages of switches of this project, of the range for manufacturers (IBA 9.2.1).
    Castnet = 0xC0,
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// The first packet of several.
    First,
    /// Neither the first packet nor the last.
    Middle,
    /// The last packet of several.
    Last,
    /// A message of one packet.
    Only,
}

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Bytes into a posted receive.
    Send,
    /// Bytes into memory that the requester names.
    Write,
    /// Requests bytes of memory.
    ReadRequest,
    /// Returns the requested bytes.
    ReadResponse,
    /// Requests an atomic operation on memory.
    Atomic,
    /// Response to an atomic operation.
    AtomicAck,
    /// ACK, NAK or RNR NAK.
    Ack,
    /// Congestion notification.
    Cnp,
    /// A member behind the sender, a switch, wants to be the source of the group.
    SourceRequest,
    /// A member behind the receiver, a switch, is the source of the group from now on.
    SourceGrant,
    /// The sender lacks one packet of the group: a switch, or a host that keeps what it receives behind a gap.
    RepairRequest,
}

bitflags::bitflags! {
    /// The headers that may follow a BTH, in wire order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Headers: u16 {
        /// Datagram header: Q_Key and source QPN.
        const DETH = 1 << 0;
        /// Remote address, key and length.
        const RETH = 1 << 1;
        /// Operands of an atomic.
        const ATOMIC_ETH = 1 << 2;
        /// Syndrome and message sequence number.
        const AETH = 1 << 3;
        /// The value before an atomic.
        const ATOMIC_ACK_ETH = 1 << 4;
        /// Immediate data.
        const IMM = 1 << 5;
        /// The key to invalidate.
        const IETH = 1 << 6;
        /// Sixteen reserved bytes of a CNP.
        const CNP = 1 << 7;
    }
}

impl Headers {
    /// Bytes of all these headers on the wire.
    pub const fn length(self) -> usize {
        let lengths = [8, 16, 28, 4, 8, 4, 4, 16];
        let (mut sum, mut bit) = (0, 0);
        while bit < lengths.len() {
            if self.bits() & (1 << bit) != 0 {
                sum += lengths[bit];
            }
            bit += 1;
        }
        sum
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpcodeInfo {
    /// The opcode of the row.
    pub opcode: Opcode,
    /// Transport and operation as the specification writes them, such as `RC SEND_FIRST`.
    pub name: &'static str,
    /// The kind of queue pair.
    pub transport: Transport,
    /// The operation.
    pub kind: Kind,
    /// The position in its message.
    pub position: Position,
    /// The headers between BTH and payload.
    pub headers: Headers,
    /// True if a payload may follow. Otherwise the ICRC directly follows the headers.
    pub has_payload: bool,
    header_len: u8,
}

impl OpcodeInfo {
    /// Bytes of BTH and extended headers: 12 to 40.
    pub const fn header_len(&self) -> usize {
        self.header_len as usize
    }

    /// Returns true if it begins a message.
    pub const fn starts_message(&self) -> bool {
        matches!(self.position, Position::First | Position::Only)
    }

    /// Returns true if it ends a message.
    pub const fn ends_message(&self) -> bool {
        matches!(self.position, Position::Last | Position::Only)
    }

    /// Returns true if the packet goes from requester to responder and has a PSN of the requester's space.
    pub const fn is_request(&self) -> bool {
        matches!(
            self.kind,
            Kind::Send | Kind::Write | Kind::ReadRequest | Kind::Atomic
        )
    }
}

macro_rules! opcodes {
    ($($byte:literal $name:ident $text:literal $transport:ident $kind:ident $position:ident
       [$($header:ident)*] $payload:literal,)*) => {
        /// A packet type that this crate knows. Names without a transport belong to reliable connections.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Opcode { $(#[doc = $text] $name = $byte,)* }

        impl Opcode {
            /// All opcodes, in order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        /// Rows by opcode byte. An unknown byte has the row of opcode 0: the number in that row then differs from the byte.
        static TABLE: [OpcodeInfo; 256] = {
            let rows = [$(OpcodeInfo {
                opcode: Opcode::$name,
                name: $text,
                transport: Transport::$transport,
                kind: Kind::$kind,
                position: Position::$position,
                headers: Headers::empty()$(.union(Headers::$header))*,
                has_payload: $payload,
                header_len: (Bth::LEN + Headers::empty()$(.union(Headers::$header))*.length()) as u8,
            },)*];
            let mut table = [rows[0]; 256];
            let mut i = 0;
            while i < rows.len() {
                table[rows[i].opcode as usize] = rows[i];
                i += 1;
            }
            table
        };
    };
}

opcodes! {
    0x00 SendFirst          "RC SEND_FIRST"           Rc  Send         First  []                    true,
    0x01 SendMiddle         "RC SEND_MIDDLE"          Rc  Send         Middle []                    true,
    0x02 SendLast           "RC SEND_LAST"            Rc  Send         Last   []                    true,
    0x03 SendLastImm        "RC SEND_LAST_IMM"        Rc  Send         Last   [IMM]                 true,
    0x04 SendOnly           "RC SEND_ONLY"            Rc  Send         Only   []                    true,
    0x05 SendOnlyImm        "RC SEND_ONLY_IMM"        Rc  Send         Only   [IMM]                 true,
    0x06 WriteFirst         "RC WRITE_FIRST"          Rc  Write        First  [RETH]                true,
    0x07 WriteMiddle        "RC WRITE_MIDDLE"         Rc  Write        Middle []                    true,
    0x08 WriteLast          "RC WRITE_LAST"           Rc  Write        Last   []                    true,
    0x09 WriteLastImm       "RC WRITE_LAST_IMM"       Rc  Write        Last   [IMM]                 true,
    0x0A WriteOnly          "RC WRITE_ONLY"           Rc  Write        Only   [RETH]                true,
    0x0B WriteOnlyImm       "RC WRITE_ONLY_IMM"       Rc  Write        Only   [RETH IMM]            true,
    0x0C ReadRequest        "RC READ_REQUEST"         Rc  ReadRequest  Only   [RETH]                false,
    0x0D ReadResponseFirst  "RC READ_RESPONSE_FIRST"  Rc  ReadResponse First  [AETH]                true,
    0x0E ReadResponseMiddle "RC READ_RESPONSE_MIDDLE" Rc  ReadResponse Middle []                    true,
    0x0F ReadResponseLast   "RC READ_RESPONSE_LAST"   Rc  ReadResponse Last   [AETH]                true,
    0x10 ReadResponseOnly   "RC READ_RESPONSE_ONLY"   Rc  ReadResponse Only   [AETH]                true,
    0x11 Ack                "RC ACK"                  Rc  Ack          Only   [AETH]                false,
    0x12 AtomicAck          "RC ATOMIC_ACK"           Rc  AtomicAck    Only   [AETH ATOMIC_ACK_ETH] false,
    0x13 CompareSwap        "RC COMPARE_SWAP"         Rc  Atomic       Only   [ATOMIC_ETH]          false,
    0x14 FetchAdd           "RC FETCH_ADD"            Rc  Atomic       Only   [ATOMIC_ETH]          false,
    0x16 SendLastInv        "RC SEND_LAST_INV"        Rc  Send         Last   [IETH]                true,
    0x17 SendOnlyInv        "RC SEND_ONLY_INV"        Rc  Send         Only   [IETH]                true,
    0x20 UcSendFirst        "UC SEND_FIRST"           Uc  Send         First  []                    true,
    0x21 UcSendMiddle       "UC SEND_MIDDLE"          Uc  Send         Middle []                    true,
    0x22 UcSendLast         "UC SEND_LAST"            Uc  Send         Last   []                    true,
    0x23 UcSendLastImm      "UC SEND_LAST_IMM"        Uc  Send         Last   [IMM]                 true,
    0x24 UcSendOnly         "UC SEND_ONLY"            Uc  Send         Only   []                    true,
    0x25 UcSendOnlyImm      "UC SEND_ONLY_IMM"        Uc  Send         Only   [IMM]                 true,
    0x26 UcWriteFirst       "UC WRITE_FIRST"          Uc  Write        First  [RETH]                true,
    0x27 UcWriteMiddle      "UC WRITE_MIDDLE"         Uc  Write        Middle []                    true,
    0x28 UcWriteLast        "UC WRITE_LAST"           Uc  Write        Last   []                    true,
    0x29 UcWriteLastImm     "UC WRITE_LAST_IMM"       Uc  Write        Last   [IMM]                 true,
    0x2A UcWriteOnly        "UC WRITE_ONLY"           Uc  Write        Only   [RETH]                true,
    0x2B UcWriteOnlyImm     "UC WRITE_ONLY_IMM"       Uc  Write        Only   [RETH IMM]            true,
    0x64 UdSendOnly         "UD SEND_ONLY"            Ud  Send         Only   [DETH]                true,
    0x65 UdSendOnlyImm      "UD SEND_ONLY_IMM"        Ud  Send         Only   [DETH IMM]            true,
    0x81 Cnp                "CNP"                     Cnp Cnp          Only   [CNP]                 false,
    0xC0 SourceRequest      "CASTNET SOURCE_REQUEST"  Castnet SourceRequest Only [AETH]             false,
    0xC1 SourceGrant        "CASTNET SOURCE_GRANT"    Castnet SourceGrant Only [AETH]               false,
    0xC2 RepairRequest      "CASTNET REPAIR_REQUEST"  Castnet RepairRequest Only [AETH]             false,
}

impl Opcode {
    /// Returns the opcode of a byte, or `None` if this crate does not know it.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Self> {
        let opcode = TABLE[usize::from(byte)].opcode;
        (opcode as u8 == byte).then_some(opcode)
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Its row of the table.
    #[inline]
    pub fn info(self) -> &'static OpcodeInfo {
        &TABLE[self as usize]
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}
