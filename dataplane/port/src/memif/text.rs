//! The text form of a memif port.

use nix::unistd::{Group, User};

use super::{Address, MemifSpec, Peers, Role, Secret};
use crate::port::frame_max;
use crate::spec::Options;

/// The largest MTU: a frame then fits in the buffers of a pool.
const MTU_MAX: usize = 9198;

/// Reads the arguments and the options of `memif:PATH`.
pub(crate) fn parse(plain: &[&str], options: &mut Options<'_>) -> Result<MemifSpec, String> {
    let [path] = plain else {
        return Err("write memif:PATH".into());
    };
    let address = Address::new(path)
        .ok_or_else(|| format!("`{path}` is no socket: write a path, or @NAME, of at most 107 bytes"))?;
    let mut spec = MemifSpec::new(address);
    let role = |value: &str| match value {
        "server" => Some(Some(Role::Server)),
        "client" => Some(Some(Role::Client)),
        _ => None,
    };
    options.set("role", "server or client", role, &mut spec.role)?;
    options.set("id", "a number below 2^32", |v| v.parse().ok(), &mut spec.id)?;
    options.set(
        "secret",
        "a text of at most 24 bytes",
        Secret::new,
        &mut spec.secret,
    )?;
    let ring = |v: &str| {
        v.parse()
            .ok()
            .filter(|n: &usize| n.is_power_of_two() && (2..=1 << 14).contains(n))
    };
    options.set("ring", "a power of two from 2 to 16384", ring, &mut spec.ring)?;
    spec.mtu = options.number("mtu", "bytes,", 68..=MTU_MAX)?.unwrap_or(spec.mtu);
    spec.buffer = options.number("buffer", "bytes,", 64..=frame_max(MTU_MAX))?;
    let mac = |v: &str| {
        v.parse()
            .ok()
            .filter(|mac: &castnet_wire::MacAddr| !mac.is_multicast())
            .map(Some)
    };
    options.set("mac", "a unicast Ethernet address", mac, &mut spec.mac)?;
    let mode = |v: &str| u32::from_str_radix(v, 8).ok().filter(|mode| *mode <= 0o777);
    options.set("mode", "a mode such as 0660", mode, &mut spec.mode)?;
    let known = |v: &str| Some(Group::from_name(v).ok()??.gid.as_raw());
    let group = |v: &str| v.parse().ok().or_else(|| known(v)).map(Some);
    options.set("group", "a group of this machine", group, &mut spec.group)?;
    let known = |v: &str| Some(User::from_name(v).ok()??.uid.as_raw());
    let peers = |v: &str| match v {
        "any" => Some(Peers::Any),
        user => user.parse().ok().or_else(|| known(user)).map(Peers::User),
    };
    options.set("uid", "a user of this machine, or any", peers, &mut spec.peers)?;
    let seals = |v: &str| match v {
        "checked" => Some(true),
        "unchecked" => Some(false),
        _ => None,
    };
    options.set("seals", "checked or unchecked", seals, &mut spec.seals)?;
    Ok(spec)
}
