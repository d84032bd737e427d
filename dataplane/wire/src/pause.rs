//! Priority-based flow control (PFC): traffic classes, and the frame that pauses them (IEEE 802.1Qbb; 802.1Q clause 36, 802.3 annex 31D).

use core::fmt;

use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::{Ethernet, MacAddr, Nanos};

/// Destination of MAC control frames. A bridge never forwards it.
pub const MAC_CONTROL: MacAddr = MacAddr([0x01, 0x80, 0xC2, 0, 0, 0x01]);
/// EtherType of MAC control frames.
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
const OPCODE_PFC: u16 = 0x0101;
/// Bytes of a PFC frame without the FCS: that of the shortest Ethernet frame.
pub const PAUSE_LENGTH: usize = 60;
/// Bit times of a pause quantum.
const QUANTUM_BITS: u64 = 512;

/// A traffic class, which 802.1Q calls a priority: 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrafficClass(u8);

impl TrafficClass {
    /// The number of classes.
    pub const COUNT: usize = 8;

    /// `None` if `class` is over 7.
    pub const fn new(class: u8) -> Option<Self> {
        if class < 8 { Some(Self(class)) } else { None }
    }

    /// All classes, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8).map(Self)
    }

    /// Its number, 0 to 7.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of classes: bit n is class n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSet(pub u8);

impl ClassSet {
    /// True if the class is in the set.
    #[inline]
    pub const fn has(self, class: TrafficClass) -> bool {
        self.0 >> class.0 & 1 != 0
    }

    /// Adds a class.
    pub const fn insert(&mut self, class: TrafficClass) {
        self.0 |= 1 << class.0;
    }

    /// Removes a class.
    pub const fn remove(&mut self, class: TrafficClass) {
        self.0 &= !(1 << class.0);
    }

    /// True if no class is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The classes, in order.
    pub fn iter(self) -> impl Iterator<Item = TrafficClass> {
        TrafficClass::all().filter(move |class| self.has(*class))
    }
}

impl FromIterator<TrafficClass> for ClassSet {
    fn from_iter<I: IntoIterator<Item = TrafficClass>>(classes: I) -> Self {
        let mut set = Self::default();
        classes.into_iter().for_each(|class| set.insert(class));
        set
    }
}

/// Maps frames to classes: IP packets by their DSCP, other frames by the priority of their outer VLAN tag, and the rest to class 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMap([TrafficClass; 64]);

impl Default for ClassMap {
    /// The upper three bits of the DSCP (class selectors, RFC 2474): 26 is class 3, as is usual for RoCE, and 48 (CNPs) is class 6.
    fn default() -> Self {
        let mut classes = [TrafficClass(0); 64];
        for (dscp, class) in classes.iter_mut().enumerate() {
            *class = TrafficClass((dscp >> 3) as u8);
        }
        Self(classes)
    }
}

impl ClassMap {
    /// Assigns a class to a DSCP. Returns `None` if `dscp` is over 63.
    pub fn set(&mut self, dscp: u8, class: TrafficClass) -> Option<()> {
        *self.0.get_mut(usize::from(dscp))? = class;
        Some(())
    }

    /// The entries that differ from the default, in the order of their DSCPs.
    pub fn changed(&self) -> impl Iterator<Item = (u8, TrafficClass)> {
        let entries = self.0.iter().zip(Self::default().0).enumerate();
        entries.filter_map(|(dscp, (class, default))| (*class != default).then_some((dscp as u8, *class)))
    }

    /// The class of the frame that starts with `head`. Class 0 if the headers cannot be read.
    pub fn class_of(&self, head: &[u8]) -> TrafficClass {
        let Ok((ethernet, l3)) = Ethernet::parse(head) else {
            return TrafficClass(0);
        };
        let dscp = match (ethernet.ethertype, head.get(l3..)) {
            (ETHERTYPE_IPV4, Some([_, tos, ..])) => tos >> 2,
            (ETHERTYPE_IPV6, Some([first, second, ..])) => (first << 4 | second >> 4) >> 2,
            _ => return TrafficClass(ethernet.vlan.map_or(0, |tag| tag.priority & 7)),
        };
        self.0[usize::from(dscp)]
    }
}

/// A PFC frame: the time for which its sender wants no frames of each class, in quanta of 512 bit times. 0 ends a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The classes that the frame is about.
    pub classes: ClassSet,
    /// By class. The times of other classes mean nothing.
    pub quanta: [u16; TrafficClass::COUNT],
}

impl Pause {
    /// The time of one of the frame's classes. `None` if it is not one of them.
    pub fn of(&self, class: TrafficClass) -> Option<u16> {
        self.classes.has(class).then(|| self.quanta[class.index()])
    }

    /// Adds a class.
    pub const fn set(&mut self, class: TrafficClass, quanta: u16) {
        self.classes.insert(class);
        self.quanta[class.0 as usize] = quanta;
    }

    /// True if the frame that starts with `head` may be a MAC control frame. Reads two bytes.
    #[inline]
    pub fn is_control(head: &[u8]) -> bool {
        matches!(head.get(12..14), Some([0x88, 0x08]))
    }

    /// Reads an Ethernet frame. `None` if it is no PFC frame, is not sent to [`MAC_CONTROL`], or is too short. The upper byte of the
    /// class-enable vector is reserved and ignored.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (head, body) = frame.split_at_checked(18)?;
        let is_pfc = head[..6] == MAC_CONTROL.0
            && head[12..14] == ETHERTYPE_MAC_CONTROL.to_be_bytes()
            && head[14..16] == OPCODE_PFC.to_be_bytes();
        let times = body.get(..16).filter(|_| is_pfc)?;
        let mut quanta = [0; TrafficClass::COUNT];
        for (quanta, bytes) in quanta.iter_mut().zip(times.chunks_exact(2)) {
            *quanta = u16::from_be_bytes([bytes[0], bytes[1]]);
        }
        Some(Self {
            classes: ClassSet(head[17]),
            quanta,
        })
    }

    /// The frame, from a port with the address `src`. Times of other classes are 0.
    pub fn emit(&self, src: MacAddr) -> [u8; PAUSE_LENGTH] {
        let mut frame = [0; PAUSE_LENGTH];
        frame[..6].copy_from_slice(&MAC_CONTROL.0);
        frame[6..12].copy_from_slice(&src.0);
        frame[12..14].copy_from_slice(&ETHERTYPE_MAC_CONTROL.to_be_bytes());
        frame[14..16].copy_from_slice(&OPCODE_PFC.to_be_bytes());
        frame[17] = self.classes.0;
        for class in self.classes.iter() {
            let at = 18 + 2 * class.index();
            frame[at..at + 2].copy_from_slice(&self.quanta[class.index()].to_be_bytes());
        }
        frame
    }
}

/// The time of pause quanta on a link of this speed in Mb/s. A speed of 0 counts as 1.
pub fn quanta_time(quanta: u16, speed_mbps: u32) -> Nanos {
    Nanos(u64::from(quanta) * QUANTUM_BITS * 1_000 / u64::from(speed_mbps.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn class(n: u8) -> TrafficClass {
        TrafficClass::new(n).expect("a class")
    }

    /// A frame as a ConnectX port sends it: classes 3 and 4, the longest pause and a resume.
    #[test]
    fn a_golden_frame() {
        let mut pause = Pause::default();
        pause.set(class(3), 0xFFFF);
        pause.set(class(4), 0);
        let mut golden =
            Vec::from(*b"\x01\x80\xC2\x00\x00\x01\x02\x00\x00\x00\x00\x07\x88\x08\x01\x01\x00\x18");
        golden.extend([0; 6]);
        golden.extend([0xFF; 2]);
        golden.resize(60, 0);
        assert_eq!(pause.emit(MacAddr([2, 0, 0, 0, 0, 7])).as_slice(), golden);
        assert_eq!(Pause::parse(&golden), Some(pause));
        assert_eq!(
            (pause.of(class(3)), pause.of(class(4)), pause.of(class(5))),
            (Some(0xFFFF), Some(0), None)
        );
        // 802.3x PAUSE, another destination, a frame that ends in the times.
        golden[14] = 0;
        assert_eq!(Pause::parse(&golden), None);
        golden[14] = 1;
        golden[5] = 2;
        assert_eq!(Pause::parse(&golden), None);
        golden[5] = 1;
        assert_eq!(Pause::parse(&golden[..33]), None);
        assert_eq!(Pause::parse(&golden[..34]), Some(pause));
    }

    #[test]
    fn times_follow_the_speed() {
        assert_eq!(quanta_time(1, 10_000), Nanos(51));
        assert_eq!(quanta_time(u16::MAX, 100_000), Nanos(335_539));
        assert_eq!(quanta_time(u16::MAX, 0), Nanos(33_553_920_000));
    }

    #[test]
    fn frames_have_the_class_of_their_dscp_or_priority() {
        let mut map = ClassMap::default();
        let frame = |types: &[u8], rest: &[u8]| [&[0; 12], types, rest, &[0; 20]].concat();
        let v4 = |dscp: u8| frame(&[0x08, 0], &[0x45, dscp << 2 | 3]);
        let tagged =
            |pcp: u8, ethertype: u8| frame(&[0x81, 0, pcp << 5, 7, 0x08, ethertype], &[0x45, 26 << 2]);
        assert_eq!(map.class_of(&v4(26)), class(3));
        assert_eq!(map.class_of(&v4(48)), class(6));
        assert_eq!(map.class_of(&frame(&[0x86, 0xDD], &[0x66, 0x80])), class(3));
        assert_eq!(map.class_of(&tagged(5, 0)), class(3), "an IP packet has a DSCP");
        assert_eq!(map.class_of(&tagged(5, 6)), class(5), "an ARP packet has none");
        assert_eq!(map.class_of(&frame(&[0x08, 6], &[])), class(0));
        assert_eq!(map.class_of(&[]), class(0));
        assert_eq!(map.set(26, class(4)), Some(()));
        assert_eq!(map.set(64, class(4)), None);
        assert_eq!(map.class_of(&v4(26)), class(4));
        assert_eq!(map.changed().collect::<Vec<_>>(), [(26, class(4))]);
    }

    proptest! {

        #[test]
        fn frames_are_read_as_written(classes: u8, quanta: [u16; 8], src: [u8; 6], cut in 0..PAUSE_LENGTH) {
            let mut pause = Pause::default();
            for class in ClassSet(classes).iter() {
                pause.set(class, quanta[class.index()]);
            }
            let frame = pause.emit(MacAddr(src));
            prop_assert!(Pause::is_control(&frame));
            prop_assert_eq!(Pause::parse(&frame), Some(pause));
            prop_assert_eq!(Pause::parse(&frame[..cut]).is_some(), cut >= 34);
        }

        /// Any bytes: no panic, and what is read is written to the same header.
        #[test]
        fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..80), is_pfc: bool) {
            if is_pfc && bytes.len() >= 16 {
                bytes[..6].copy_from_slice(&MAC_CONTROL.0);
                bytes[12..16].copy_from_slice(&[0x88, 0x08, 0x01, 0x01]);
            }
            let _ = ClassMap::default().class_of(&bytes);
            match Pause::parse(&bytes) {
                Some(pause) => {
                    prop_assert!(Pause::is_control(&bytes));
                    let src = MacAddr(bytes[6..12].try_into().expect("six bytes"));
                    let again = Pause::parse(&pause.emit(src)).expect("a PFC frame");
                    for class in TrafficClass::all() {
                        prop_assert_eq!(again.of(class), pause.of(class));
                    }
                }
                None => prop_assert!(!is_pfc || bytes.len() < 34),
            }
        }
    }
}
