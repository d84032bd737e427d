//! Ports that DPDK drives, with the feature `dpdk`.

use std::str::FromStr;

use castnet_worker::{Dataplane, DataplaneConfig, StartError};
use clap::ValueEnum;

/// Memory of DPDK's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hugepages {
    /// Hugepages if enough of them are free.
    #[default]
    Auto,
    /// Hugepages; without them the switch does not start. Most NICs need them.
    Yes,
    /// Ordinary memory: enough for virtual devices.
    No,
}

impl FromStr for Hugepages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ValueEnum::from_str(text, false).map_err(|_| format!("'{text}' is neither auto, yes nor no"))
    }
}

#[cfg(feature = "dpdk")]
impl From<Hugepages> for castnet_dpdk::Hugepages {
    fn from(hugepages: Hugepages) -> Self {
        match hugepages {
            Hugepages::Auto => Self::Auto,
            Hugepages::Yes => Self::Yes,
            Hugepages::No => Self::No,
        }
    }
}

/// Release of DPDK; `None` if it is not built in.
#[cfg(feature = "dpdk")]
pub fn version() -> Option<String> {
    Some(castnet_dpdk::version())
}

/// Release of DPDK; `None` if it is not built in.
#[cfg(not(feature = "dpdk"))]
pub fn version() -> Option<String> {
    None
}

/// Bytes that DPDK needs; `None` without DPDK devices or without DPDK.
#[cfg(feature = "dpdk")]
pub fn bytes(config: &DataplaneConfig) -> Option<u64> {
    let config = needs(config, Hugepages::Auto)?;
    Some(config.bytes() as u64)
}

/// Bytes that DPDK needs; `None` without DPDK devices or without DPDK.
#[cfg(not(feature = "dpdk"))]
pub fn bytes(_config: &DataplaneConfig) -> Option<u64> {
    None
}

/// `None` without DPDK devices.
#[cfg(feature = "dpdk")]
fn needs(config: &DataplaneConfig, hugepages: Hugepages) -> Option<castnet_dpdk::Config> {
    let devices = config.ports.iter().filter_map(|p| p.spec.dpdk().cloned());
    let devices: Vec<_> = devices.collect();
    (!devices.is_empty()).then_some(castnet_dpdk::Config {
        threads: config.workers.len(),
        pool: config.whole_pool(),
        hand_over: config.hand_over,
        hugepages: hugepages.into(),
        devices,
    })
}

/// Starts a dataplane. If a port is a DPDK device, all frames are in DPDK's buffers.
#[cfg(feature = "dpdk")]
pub fn start(config: DataplaneConfig, hugepages: Hugepages) -> Result<Dataplane, StartError> {
    let Some(needs) = needs(&config, hugepages) else {
        return Dataplane::start(config);
    };
    let runtime = castnet_dpdk::Runtime::start(&needs).map_err(|e| StartError::Memory {
        worker: 0,
        source: e.into(),
    })?;
    Dataplane::start_in(config, move |worker| {
        let memory = runtime.memory()?;
        if worker == 0 {
            tracing::info!("replicas: {}, as measured on this CPU", memory.thresholds());
        }
        Ok(memory)
    })
}

/// Starts a dataplane. The error of a DPDK device says how to build with DPDK.
#[cfg(not(feature = "dpdk"))]
pub fn start(config: DataplaneConfig, _hugepages: Hugepages) -> Result<Dataplane, StartError> {
    Dataplane::start(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_worker::PortConfig;

    #[test]
    fn a_device_that_cannot_be_had_says_what_to_do() {
        let id = castnet_wire::PortId::new(0).expect("a number");
        let spec: castnet_port::PortSpec = "dpdk:net_carrier_pigeon0".parse().expect("a port");
        let config = DataplaneConfig::new("s", vec![PortConfig::new(id, "p", spec)]);
        let Err(error) = start(config, Hugepages::No) else {
            panic!("there is no such device");
        };
        let error = error.to_string();
        let word = match cfg!(feature = "dpdk") {
            true => "DPDK says",
            false => "--features dpdk",
        };
        assert!(
            error.contains("net_carrier_pigeon0") && error.contains(word),
            "{error}"
        );
    }
}
