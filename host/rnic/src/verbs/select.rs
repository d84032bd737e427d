//! Selection of a device, port and GID: as the user names them, or the first that is up and has a matching GID.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_wire::{MacAddr, Pmtu};

use super::handles::{self, Context};
use super::library::Api;
use super::status::port_state_name;
use super::sysfs::{GidEntry, Sysfs};
use super::{VerbsConfig, sys};
use crate::error::RnicError;
use crate::rnic::DeviceAttributes;

pub(super) struct ChosenDevice {
    pub(super) context: Arc<Context>,
    pub(super) attributes: DeviceAttributes,
    pub(super) gid_index: u8,
    pub(super) interface: Option<String>,
    pub(super) limits: sys::DeviceAttr,
}

pub(super) fn choose(api: &Arc<Api>, sysfs: &Sysfs, config: &VerbsConfig) -> Result<ChosenDevice, RnicError> {
    let names = handles::device_names(api)?;
    if names.is_empty() {
        return Err(RnicError::NoRdmaDevice {
            without_driver: sysfs.devices(),
        });
    }
    let unknown = |asked: &str| RnicError::UnknownRdmaDevice {
        asked: asked.to_owned(),
        devices: names.clone(),
    };
    if let Some(asked) = &config.device {
        return open(api, sysfs, config, asked)?.ok_or_else(|| unknown(asked));
    }
    let mut first = None;
    for name in &names {
        match open(api, sysfs, config, name) {
            Ok(Some(chosen)) => return Ok(chosen),
            Ok(None) => {}
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| unknown(&names[0])))
}

fn open(
    api: &Arc<Api>,
    sysfs: &Sysfs,
    config: &VerbsConfig,
    name: &str,
) -> Result<Option<ChosenDevice>, RnicError> {
    let Some(context) = Context::open(api, name)? else {
        return Ok(None);
    };
    let port = context.query_port(config.port)?;
    let active_pmtu = check_port(name, config.port, &port)?;
    let count = usize::try_from(port.gid_tbl_len).unwrap_or(0);
    let gids = sysfs.gids(name, config.port, count);
    let (gid_index, ip, interface) = pick_gid(name, &gids, config)?;
    let behind = interface
        .as_deref()
        .and_then(|interface| sysfs.interface(interface));
    let (mac, mtu) = behind.unwrap_or((MacAddr([0; 6]), active_pmtu.bytes()));
    Ok(Some(ChosenDevice {
        limits: context.query()?,
        attributes: DeviceAttributes {
            name: name.to_owned(),
            mac,
            ip,
            mtu,
            active_pmtu,
        },
        gid_index,
        interface,
        context,
    }))
}

/// Checks that a port is up and Ethernet. Returns its path MTU.
fn check_port(device: &str, port: u8, attr: &sys::PortAttr) -> Result<Pmtu, RnicError> {
    let device = device.to_owned();
    if attr.link_layer == sys::LINK_LAYER_INFINIBAND as u8 {
        return Err(RnicError::NotEthernet { device, port });
    }
    if attr.state != sys::PORT_ACTIVE && attr.state != sys::PORT_ACTIVE_DEFER {
        let state = port_state_name(attr.state);
        return Err(RnicError::PortDown { device, port, state });
    }
    pmtu(attr.active_mtu).ok_or(RnicError::PortDown {
        device,
        port,
        state: format!(
            "{} with path MTU code {}",
            port_state_name(attr.state),
            attr.active_mtu
        ),
    })
}

/// The path MTU of a code IBV_MTU_*.
pub(super) fn pmtu(code: u32) -> Option<Pmtu> {
    Pmtu::ALL.into_iter().find(|pmtu| mtu_code(*pmtu) == code)
}

pub(super) fn mtu_code(pmtu: Pmtu) -> u32 {
    match pmtu {
        Pmtu::B256 => sys::MTU_256,
        Pmtu::B512 => sys::MTU_512,
        Pmtu::B1024 => sys::MTU_1024,
        Pmtu::B2048 => sys::MTU_2048,
        Pmtu::B4096 => sys::MTU_4096,
    }
}

/// Selects the requested GID, or the first RoCEv2 GID with the host's address. Returns index, address and interface.
fn pick_gid(
    device: &str,
    gids: &[GidEntry],
    config: &VerbsConfig,
) -> Result<(u8, Ipv4Addr, Option<String>), RnicError> {
    let fits = |gid: &&GidEntry| match config.gid_index {
        Some(index) => u32::from(gid.index) == index && gid.is_roce_v2,
        None => gid.is_roce_v2 && gid.ipv4().is_some() && config.ip.is_none_or(|ip| gid.ipv4() == Some(ip)),
    };
    let found = gids.iter().find(fits).and_then(|gid| Some((gid, gid.ipv4()?)));
    match found {
        Some((gid, ip)) if config.ip.is_none_or(|asked| asked == ip) => {
            Ok((gid.index, ip, gid.interface.clone()))
        }
        _ => Err(RnicError::NoGid {
            device: device.to_owned(),
            port: config.port,
            ip: config.ip,
            index: config.gid_index,
            gids: gids.to_vec(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::sysfs::tests::rxe0;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn pick(ip: Option<Ipv4Addr>, gid_index: Option<u32>) -> Result<u8, RnicError> {
        let (_folder, sysfs) = rxe0();
        let config = VerbsConfig {
            ip,
            gid_index,
            ..VerbsConfig::default()
        };
        pick_gid("rxe0", &sysfs.gids("rxe0", 1, 16), &config).map(|(index, ..)| index)
    }

    #[test]
    fn the_roce_v2_gid_of_the_host_is_selected() {
        assert_eq!(pick(None, None).ok(), Some(1));
        assert_eq!(pick(Some(OWN), None).ok(), Some(1));
        assert_eq!(pick(Some(OWN), Some(1)).ok(), Some(1));
        assert_eq!(pick(None, Some(1)).ok(), Some(1));
    }

    #[test]
    fn a_gid_of_another_address_kind_or_family_is_refused_with_the_table() {
        let other = Ipv4Addr::new(10, 0, 0, 2);
        for (ip, index) in [
            (Some(other), None),
            (None, Some(3)),
            (None, Some(0)),
            (Some(other), Some(1)),
            (None, Some(9)),
        ] {
            let error = pick(ip, index).expect_err("no such GID");
            let RnicError::NoGid { gids, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(gids.len(), 3);
            assert!(error.to_string().contains("rxe0"), "{error}");
            assert!(error.advice().is_some());
        }
    }

    #[test]
    fn a_port_must_be_up_and_of_ethernet() {
        let up = sys::PortAttr {
            state: sys::PORT_ACTIVE,
            active_mtu: sys::MTU_1024,
            link_layer: sys::LINK_LAYER_ETHERNET as u8,
            ..sys::PortAttr::default()
        };
        assert_eq!(check_port("rxe0", 1, &up).ok(), Some(Pmtu::B1024));
        let down = sys::PortAttr {
            state: sys::PORT_DOWN,
            ..up
        };
        let error = check_port("rxe0", 1, &down).expect_err("down");
        assert!(error.to_string().contains("IBV_PORT_DOWN"), "{error}");
        assert!(error.advice().is_some_and(|a| a.contains("ip link set")));
        let infiniband = sys::PortAttr {
            link_layer: sys::LINK_LAYER_INFINIBAND as u8,
            ..up
        };
        assert!(matches!(
            check_port("ib0", 1, &infiniband),
            Err(RnicError::NotEthernet { .. })
        ));
    }

    #[test]
    fn path_mtu_codes_round_trip() {
        for size in Pmtu::ALL {
            assert_eq!(pmtu(mtu_code(size)), Some(size));
        }
        assert_eq!(pmtu(0), None);
        assert_eq!(pmtu(6), None);
    }
}
