//! [`PfcConfig`]: priority-based flow control (PFC, IEEE 802.1Qbb) at a port of a switch, as it is written in the text of a port.

use std::fmt;

use castnet_wire::{ClassMap, ClassSet, Nanos, TrafficClass};

use crate::spec::{Options, duration};

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

    /// Of a link whose speed nobody knows.
    pub const UNKNOWN_SPEED_MBPS: u32 = 10_000;

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

    /// Takes the options of flow control from those of a port. `None` if there are none.
    pub(crate) fn read(options: &mut Options<'_>) -> Result<Option<Self>, String> {
        const BYTES: &str = "bytes";
        let bytes = 1..=1 << 40;
        let classes = options.take("pfc", "classes from 0 to 7 such as 3 or 3+4", classes)?;
        let mut config = Self::new(classes.unwrap_or_default());
        let mut given = None;
        let mut number = |key, range| {
            let number = options.number(key, BYTES, range)?;
            given = given.or(number.map(|_| key));
            Ok::<_, String>(number.map(|n| n as u64))
        };
        config.xoff_bytes = number("pfc.xoff", bytes.clone())?.unwrap_or(config.xoff_bytes);
        config.xon_bytes = number("pfc.xon", 0..=1 << 40)?.unwrap_or(config.xoff_bytes / 2);
        config.headroom_bytes = number("pfc.headroom", bytes)?.unwrap_or(config.headroom_bytes);
        if config.xon_bytes >= config.xoff_bytes {
            return Err(format!(
                "`pfc.xon={}`: must be less than pfc.xoff, {}",
                config.xon_bytes, config.xoff_bytes
            ));
        }
        let speed = options.number("pfc.speed", "Mb/s,", 1..=10_000_000)?;
        let map = options.take("pfc.dscp", "DSCPs and their classes such as 26:3+48:6", class_map)?;
        let watchdog = options.take(
            "pfc.watchdog",
            "a time from 1us up such as 200ms, or off",
            watchdog,
        )?;
        let keys = [
            ("pfc.speed", speed.is_some()),
            ("pfc.dscp", map.is_some()),
            ("pfc.watchdog", watchdog.is_some()),
        ];
        given = given.or(keys.iter().find(|(_, given)| *given).map(|(key, _)| *key));
        config.speed_mbps = speed.map(|mbps| mbps as u32);
        config.map = map.unwrap_or_default();
        config.watchdog = watchdog.unwrap_or(config.watchdog);
        match (classes, given) {
            (Some(_), _) => Ok(Some(config)),
            (None, None) => Ok(None),
            (None, Some(key)) => Err(format!("`{key}`: needs `pfc=CLASSES` too")),
        }
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

fn class(text: &str) -> Option<TrafficClass> {
    TrafficClass::new(text.parse().ok()?)
}

fn classes(value: &str) -> Option<ClassSet> {
    value.split('+').map(class).collect()
}

fn class_map(value: &str) -> Option<ClassMap> {
    let mut map = ClassMap::default();
    for entry in value.split('+') {
        let (dscp, to) = entry.split_once(':')?;
        map.set(dscp.parse().ok()?, class(to)?)?;
    }
    Some(map)
}

fn watchdog(value: &str) -> Option<Option<Nanos>> {
    if value == "off" {
        return Some(None);
    }
    duration(value)
        .filter(|after| *after >= Nanos::from_micros(1))
        .map(Some)
}
