//! The configuration of a switch, and the start of its dataplane.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use castnet_switch::config::SwitchConfig;
//!
//! # async fn start() -> castnet_console::exit::Outcome {
//! let config = SwitchConfig::read(Path::new("/etc/castnet/switch.toml"))?;
//! let dataplane = castnet_switch::start(castnet_switch::dataplane_config(&config)?).await?;
//! println!("{} runs", dataplane.name());
//! # Ok(())
//! # }
//! ```

pub mod balance;
pub mod config;
pub mod dpdk;
pub mod mrp;

use std::sync::Arc;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::units::{Size, Span};
use castnet_port::has_interface;
use castnet_wire::{Nanos, PortId};
use castnet_worker::{Dataplane, DataplaneConfig, Idle as WorkerIdle, PortConfig, StartError, WorkerConfig};

use config::{Idle, SwitchConfig, WorkerPlace};
use dpdk::Hugepages;

/// A random seed for hash tables, so that nobody can choose colliding keys.
pub fn hash_seed() -> u64 {
    castnet_proto::process::draw()
}

/// The host name without its domain, or `switch`.
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = name.trim().split('.').next().unwrap_or_default();
    if short.is_empty() {
        "switch".to_owned()
    } else {
        short.to_owned()
    }
}

/// The configuration with defaults filled in. A usage failure names the wrong port or option.
pub fn dataplane_config(config: &SwitchConfig) -> Outcome<DataplaneConfig> {
    config.check_sizes()?;
    let ports = config
        .port_specs()?
        .into_iter()
        .enumerate()
        .filter_map(|(index, (name, spec))| {
            let id = PortId::new(u8::try_from(index).ok()?)?;
            let flood = !config.no_flood.contains(&name);
            Some(PortConfig {
                flood,
                ..PortConfig::new(id, name, spec)
            })
        });
    let mut out = DataplaneConfig::new(config.name.clone().unwrap_or_else(machine_name), ports.collect());
    let core_ports = out
        .ports
        .iter()
        .filter(|port| config.core_ports.contains(&port.name));
    out.engine.core_ports = core_ports.map(|port| port.id).collect();
    let idle = match config.idle.unwrap_or_default() {
        Idle::Busy => WorkerIdle::Busy,
        Idle::Adaptive => WorkerIdle::default(),
    };
    let places = if config.workers.is_empty() {
        &[WorkerPlace { core: None }][..]
    } else {
        &config.workers
    };
    out.workers = places
        .iter()
        .map(|place| WorkerConfig {
            core: place.core,
            idle,
        })
        .collect();
    let names: Vec<&str> = out.ports.iter().map(|port| port.name.as_str()).collect();
    out.engine.registration = config.mrp.registration(&names)?;
    out.balance = config.balance.unwrap_or_default().balance();
    out.engine.hash_seed = hash_seed();
    if let Some(most) = config.groups_max {
        out.engine.groups_max = most;
    }
    if let Some(Size(bytes)) = config.memory {
        out.engine.memory_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(Span(every)) = config.lldp {
        let nanos = Nanos(u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        out.engine.lldp_interval = Some(nanos).filter(|n| *n > Nanos::ZERO);
    }
    Ok(out)
}

/// Starts a dataplane on a blocking thread: opening ports waits for the kernel.
pub async fn start(config: DataplaneConfig) -> Outcome<Arc<Dataplane>> {
    start_with(config, Hugepages::default()).await
}

/// [`start`] with a choice of hugepages.
pub async fn start_with(mut config: DataplaneConfig, hugepages: Hugepages) -> Outcome<Arc<Dataplane>> {
    allow_absent_interfaces(&mut config);
    let started = tokio::task::spawn_blocking(move || dpdk::start(config, hugepages))
        .await
        .map_err(Failure::failed)?;
    started.map(Arc::new).map_err(|e| match e {
        StartError::Port { .. } => Failure::failed(e).next("castnet doctor --for switch"),
        StartError::Config(_)
        | StartError::NoWorkers
        | StartError::TooManyWorkers { .. }
        | StartError::Pin { .. } => Failure::usage(e),
        _ => Failure::failed(e),
    })
}

/// One dead NIC does not keep the other ports from starting. If all ports lack their interfaces, their names are wrong, or this is the wrong
/// machine: then the first one fails to open.
fn allow_absent_interfaces(config: &mut DataplaneConfig) {
    let absent = |port: &PortConfig| {
        let name = port.spec.interface().filter(|name| !has_interface(name));
        name.map(ToOwned::to_owned)
    };
    if config.ports.iter().all(|port| absent(port).is_some()) {
        return;
    }
    for port in &mut config.ports {
        if let Some(interface) = absent(port) {
            tracing::warn!(
                port = port.name,
                interface,
                "there is no interface of this name: the port is down until there is one"
            );
            port.spec.set_absent();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_port::PortSpec;
    use std::path::Path;

    #[test]
    fn the_example_configuration_is_valid() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples/switch.toml");
        let config = SwitchConfig::read(Path::new(path)).expect("no fault");
        let dataplane = dataplane_config(&config).expect("a dataplane");
        assert_eq!(
            (
                dataplane.engine.switch.as_str(),
                dataplane.ports.len(),
                dataplane.workers.len()
            ),
            ("leaf1", 3, 1)
        );
    }

    #[test]
    fn an_interface_may_be_missing_unless_all_are() {
        let absent = |ports: &[&str]| {
            let config = SwitchConfig {
                ports: ports.iter().map(|port| port.parse().expect("a port")).collect(),
                ..SwitchConfig::default()
            };
            let mut config = dataplane_config(&config).expect("a configuration");
            allow_absent_interfaces(&mut config);
            let is_absent = |spec: &PortSpec| matches!(spec, PortSpec::AfPacket(spec) if spec.is_absent);
            let ports = config.ports.iter();
            let ports = ports.map(|port| match &port.spec {
                PortSpec::Faulty(inner, _) => is_absent(inner),
                spec => is_absent(spec),
            });
            ports.collect::<Vec<_>>()
        };
        assert_eq!(
            absent(&["a=lo", "b=nosuch0", "c=nosuch1,loss=1%"]),
            [false, true, true]
        );
        assert_eq!(absent(&["a=memory:a", "b=nosuch0"]), [false, true]);
        assert_eq!(absent(&["a=nosuch0", "b=nosuch1"]), [false, false]);
    }

    /// The unit may write at a few places only.
    #[test]
    fn the_paths_of_the_example_are_those_of_the_unit() {
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
        let read = |name| std::fs::read_to_string(format!("{deploy}/{name}")).expect("a file");
        let (unit, example) = (
            read("systemd/castnet-switch.service"),
            read("examples/switch.toml"),
        );
        for (kind, path) in [
            ("LogsDirectory", "# audit_log = \"/var/log/castnet-switch/"),
            ("RuntimeDirectory", "or unix:/run/castnet-switch/"),
            ("RuntimeDirectory", "or memif:/run/castnet-switch/"),
        ] {
            assert!(unit.contains(&format!("\n{kind}=castnet-switch\n")), "{kind}");
            assert!(example.contains(path), "{path}");
        }
    }

    #[test]
    fn defaults_are_filled_in_and_lldp_can_be_turned_off() {
        let ports = vec!["a=eth0".parse().expect("a port")];
        let config = SwitchConfig {
            ports,
            lldp: Some(Span(std::time::Duration::ZERO)),
            ..SwitchConfig::default()
        };
        let dataplane = dataplane_config(&config).expect("a dataplane");
        assert_eq!(dataplane.engine.lldp_interval, None);
        assert!(!dataplane.engine.switch.is_empty());
    }

    #[test]
    fn a_port_that_is_named_may_bring_data_of_a_core() {
        let ports = ["a=eth0", "b=eth1", "c=eth2"]
            .map(|p| p.parse().expect("a port"))
            .into();
        let config = SwitchConfig {
            ports,
            core_ports: vec!["c".into(), "b".into()],
            ..SwitchConfig::default()
        };
        let dataplane = dataplane_config(&config).expect("a configuration");
        assert_eq!(dataplane.engine.core_ports.0, 0b110);
    }

    #[test]
    fn a_port_that_is_named_is_not_flooded_to() {
        let ports = ["a=eth0", "b=eth1"].map(|p| p.parse().expect("a port")).into();
        let config = SwitchConfig {
            ports,
            no_flood: vec!["b".into()],
            ..SwitchConfig::default()
        };
        let dataplane = dataplane_config(&config).expect("a configuration");
        assert_eq!(
            dataplane.ports.iter().map(|p| p.flood).collect::<Vec<_>>(),
            [true, false]
        );
    }
}
