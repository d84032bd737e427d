//! Ethernet II with 802.1Q tags: two addresses, up to [`TAGS_MAX`] tags, EtherType. No FCS: network cards keep it.

use crate::error::{EmitError, Header, ParseError, chunk, put};
use crate::ids::MacAddr;
use crate::ipv4::Ipv4;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an 802.1Q customer tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// EtherType of an 802.1ad service tag.
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88A8;
/// EtherType of LLDP.
pub const ETHERTYPE_LLDP: u16 = 0x88CC;
/// The most tags that a frame may have: one of a provider and one of its customer (802.1ad).
pub const TAGS_MAX: usize = 2;
/// The shortest frame on a wire, without its FCS. Shorter ones are padded with zeros.
pub const FRAME_MIN: usize = 60;
/// Bytes of destination and source address together.
pub const MACS_LEN: usize = 12;
/// Offset of the source address.
pub const SRC_AT: usize = 6;
/// Offset of the EtherType, or of the outer tag.
pub const ETHERTYPE_AT: usize = MACS_LEN;

/// Writes both Ethernet addresses. Returns false, with nothing changed, if `head` is too short.
#[inline]
pub fn set_macs(head: &mut [u8], dst: MacAddr, src: MacAddr) -> bool {
    let Some(addresses) = head.first_chunk_mut::<MACS_LEN>() else {
        return false;
    };
    addresses[..SRC_AT].copy_from_slice(&dst.0);
    addresses[SRC_AT..].copy_from_slice(&src.0);
    true
}

/// An 802.1Q or 802.1ad tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanTag {
    /// The kind of tag: an EtherType for which [`is_tag`] is true.
    pub tpid: u16,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// True if the frame may be dropped first under congestion.
    pub drop_eligible: bool,
    /// VLAN number, below 4096; 0 means priority only.
    pub vid: u16,
}

impl VlanTag {
    /// Bytes of a tag.
    pub const LEN: usize = 4;

    /// A customer tag of priority 0.
    pub const fn new(vid: u16) -> Self {
        Self {
            tpid: ETHERTYPE_VLAN,
            priority: 0,
            drop_eligible: false,
            vid: vid & 0xFFF,
        }
    }

    const fn from_words(tpid: u16, control: u16) -> Self {
        Self {
            tpid,
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
            vid: control & 0xFFF,
        }
    }

    const fn control(self) -> u16 {
        ((self.priority as u16 & 7) << 13) | ((self.drop_eligible as u16) << 12) | (self.vid & 0xFFF)
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ethernet {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// The outer tag. A second one is skipped and not kept.
    pub vlan: Option<VlanTag>,
    /// EtherType behind the tags; below 0x600 it is a length (802.3).
    pub ethertype: u16,
}

/// Returns true if this EtherType begins a VLAN tag that a kernel or a network card may strip. 0x9100, 0x9200 and 0x9300 are
/// service tags from before 802.1ad.
#[inline]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(
        ethertype,
        ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN | 0x9100 | 0x9200 | 0x9300
    )
}

impl Ethernet {
    /// Bytes without a tag.
    pub const LEN: usize = 14;

    /// Reads the header from the start of a frame. Returns it with its length in bytes: 14, 18 or, with two tags, 22.
    ///
    /// # Errors
    /// Too few bytes, or more than [`TAGS_MAX`] tags. Linux strips any number of priority tags (VID 0), so further tags would
    /// hide the packet that a receiver reads from every check.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let b: &[u8; Self::LEN] = chunk(bytes, Header::Ethernet)?;
        let mut ethernet = Self {
            dst: MacAddr([b[0], b[1], b[2], b[3], b[4], b[5]]),
            src: MacAddr([b[6], b[7], b[8], b[9], b[10], b[11]]),
            vlan: None,
            ethertype: u16::from_be_bytes([b[12], b[13]]),
        };
        let mut length = Self::LEN;
        while is_tag(ethernet.ethertype) {
            if length == Self::LEN + TAGS_MAX * VlanTag::LEN {
                return Err(ParseError::rule(Header::Vlan, "more than two tags"));
            }
            let [c0, c1, t0, t1] = *chunk(bytes.get(length..).unwrap_or_default(), Header::Vlan)?;
            let tag = VlanTag::from_words(ethernet.ethertype, u16::from_be_bytes([c0, c1]));
            ethernet.vlan = ethernet.vlan.or(Some(tag));
            ethernet.ethertype = u16::from_be_bytes([t0, t1]);
            length += VlanTag::LEN;
        }
        Ok((ethernet, length))
    }

    /// The same for any number of tags, for frames that are only forwarded.
    ///
    /// # Errors
    /// Too few bytes, also for an IPv4 header: its addresses say in whose name the frame comes, and must not lie behind what is seen.
    #[cold]
    pub fn parse_any(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let b: &[u8; Self::LEN] = chunk(bytes, Header::Ethernet)?;
        let ethertype = |at: usize| {
            let [high, low] = *chunk(bytes.get(at..).unwrap_or_default(), Header::Vlan)?;
            Ok(u16::from_be_bytes([high, low]))
        };
        let tags = bytes[ETHERTYPE_AT..].chunks(VlanTag::LEN);
        let tags =
            tags.take_while(|tag| matches!(tag, [t0, t1, ..] if is_tag(u16::from_be_bytes([*t0, *t1]))));
        let end = ETHERTYPE_AT + tags.count() * VlanTag::LEN;
        let outer = match end {
            ETHERTYPE_AT => None,
            _ => Some(VlanTag::from_words(
                ethertype(ETHERTYPE_AT)?,
                ethertype(ETHERTYPE_AT + 2)?,
            )),
        };
        let ethernet = Self {
            dst: MacAddr([b[0], b[1], b[2], b[3], b[4], b[5]]),
            src: MacAddr([b[6], b[7], b[8], b[9], b[10], b[11]]),
            vlan: outer,
            ethertype: ethertype(end)?,
        };
        if ethernet.ethertype == ETHERTYPE_IPV4 {
            let _: &[u8; Ipv4::LEN] = chunk(bytes.get(end + 2..).unwrap_or_default(), Header::Ipv4)?;
        }
        Ok((ethernet, end + 2))
    }

    /// Bytes that [`Ethernet::emit`] writes: 14, or 18 with a tag.
    pub const fn length(&self) -> usize {
        match self.vlan {
            None => Self::LEN,
            Some(_) => Self::LEN + VlanTag::LEN,
        }
    }

    /// Writes the header to the start of `out`. Returns its length in bytes.
    ///
    /// # Errors
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let mut b = [0; Self::LEN + VlanTag::LEN];
        b[..SRC_AT].copy_from_slice(&self.dst.0);
        b[SRC_AT..MACS_LEN].copy_from_slice(&self.src.0);
        match self.vlan {
            None => {
                b[12..14].copy_from_slice(&self.ethertype.to_be_bytes());
                let [plain @ .., _, _, _, _] = &b;
                put::<{ Self::LEN }>(out, Header::Ethernet, plain)
            }
            Some(tag) => {
                b[12..14].copy_from_slice(&tag.tpid.to_be_bytes());
                b[14..16].copy_from_slice(&tag.control().to_be_bytes());
                b[16..18].copy_from_slice(&self.ethertype.to_be_bytes());
                put(out, Header::Ethernet, &b)
            }
        }
    }
}
