//! The options of flow control (PFC, IEEE 802.1Qbb) in the text of a port.

use castnet_pfc::PfcConfig;
use castnet_wire::{ClassMap, ClassSet, Nanos, TrafficClass};

use crate::spec::{Options, duration};

/// Takes the options of flow control from those of a port. `None` if there are none.
pub(crate) fn read(options: &mut Options<'_>) -> Result<Option<PfcConfig>, String> {
    const BYTES: &str = "bytes";
    let bytes = 1..=1 << 40;
    let classes = options.take("pfc", "classes from 0 to 7 such as 3 or 3+4", classes)?;
    let mut config = PfcConfig::new(classes.unwrap_or_default());
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
