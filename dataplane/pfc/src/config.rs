//! Configuration of flow control at a port.

use std::fmt;

use castnet_wire::{ClassMap, ClassSet, Nanos};

/// Flow control of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// The lossless classes: they obey PAUSE, and their senders get PAUSE.
    pub classes: ClassSet,
    /// The class of each frame that leaves by the port.
    pub map: ClassMap,
    /// Bytes of this port's frames that may wait for one port and class before PAUSE is sent (XOFF).
    pub xoff_bytes: u64,
    /// Bytes of them from which down the pause ends (XON).
    pub xon_bytes: u64,
    /// Bytes that may still come after PAUSE: in the cable, and in the queues of both ends until they react.
    pub headroom_bytes: u64,
    /// Speed of the link in Mb/s, of which pause times are counted. `None`: that of the device, or 10 Gb/s if it is unknown.
    pub speed_mbps: Option<u32>,
    /// A class that is paused for longer than this has a storm, which ends after the same time without PAUSE. `None`: never.
    pub watchdog: Option<Nanos>,
}

impl PfcConfig {
    const XOFF: u64 = 128 << 10;
    const HEADROOM: u64 = 256 << 10;
    const WATCHDOG: Nanos = Nanos::from_millis(200);

    /// Speed of a link if neither the configuration nor the device gives it.
    const UNKNOWN_SPEED_MBPS: u32 = 10_000;

    /// With the default thresholds: XOFF at 128 KiB, XON at half of that, 256 KiB of headroom, a watchdog after 200 ms.
    pub fn new(classes: ClassSet) -> Self {
        Self {
            classes,
            map: ClassMap::default(),
            xoff_bytes: Self::XOFF,
            xon_bytes: Self::XOFF / 2,
            headroom_bytes: Self::HEADROOM,
            speed_mbps: None,
            watchdog: Some(Self::WATCHDOG),
        }
    }

    /// The speed in Mb/s of which pause times are counted. `device` is that of the device, if it is known.
    pub(crate) fn speed(&self, device: Option<u32>) -> u32 {
        self.speed_mbps.or(device).unwrap_or(Self::UNKNOWN_SPEED_MBPS)
    }
}

impl fmt::Display for PfcConfig {
    /// As options of a port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes: Vec<_> = self.classes.iter().map(|class| class.to_string()).collect();
        write!(
            f,
            "pfc={},pfc.xoff={},pfc.xon={},pfc.headroom={}",
            classes.join("+"),
            self.xoff_bytes,
            self.xon_bytes,
            self.headroom_bytes
        )?;
        if let Some(speed) = self.speed_mbps {
            write!(f, ",pfc.speed={speed}")?;
        }
        let map: Vec<_> = self
            .map
            .changed()
            .map(|(dscp, class)| format!("{dscp}:{class}"))
            .collect();
        if !map.is_empty() {
            write!(f, ",pfc.dscp={}", map.join("+"))?;
        }
        match self.watchdog {
            Some(after) => write!(f, ",pfc.watchdog={}ns", after.0),
            None => f.write_str(",pfc.watchdog=off"),
        }
    }
}
