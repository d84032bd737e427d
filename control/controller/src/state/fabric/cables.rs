//! Cables between switches: what LLDP shows of them, what of that is believed, and which of them are not as the topology file has them.

use std::collections::BTreeSet;

use castnet_topology::{End, Splitter, SwitchKind, Topology};

use super::{Facts, NeighbourReport, Reach, Who};

impl Facts {
    /// What is wrong with each cable of a switch that is not as the file has it. A plain switch or a router passes LLDP frames on, or has a
    /// name of its own in them: what is seen behind one says nothing.
    pub(crate) fn wrong_links(&self, switch: &str) -> Vec<String> {
        let (Some(file), Some((Reach::Up, report))) = (&self.file, self.switches.get(switch)) else {
            return Vec::new();
        };
        let wrong = |neighbour: &NeighbourReport| {
            let seen = self.far_end(neighbour)?;
            let near = End::port(switch, neighbour.port);
            let filed = filed(file, &near);
            let is_of_splitter =
                |from: &End, to: &End| splitter_links(file).any(|(near, far)| near == *from && far == to);
            let expected = match filed {
                Some(filed) if *filed == seen => return None,
                None if is_of_splitter(&near, &seen) || is_of_splitter(&seen, &near) => return None,
                Some(End::Switch { switch, .. }) if file.switch(switch)?.kind != SwitchKind::Castnet => {
                    return None;
                }
                Some(End::Switch { switch, port }) => {
                    format!("port {} of {switch}", self.port_name(switch, *port))
                }
                Some(End::Host(host)) => format!("host {host}"),
                None => "nothing".into(),
            };
            let End::Switch { switch: far, port } = &seen else {
                return None;
            };
            let (here, there) = (self.port_name(switch, neighbour.port), self.port_name(far, *port));
            Some(format!(
                "port {here} leads to port {there} of {far}, and to {expected} in the topology file"
            ))
        };
        report.neighbours.iter().filter_map(wrong).collect()
    }

    /// The ports that lead to other switches; and, without a file, those of which only the other end says so, which may be a host.
    pub(super) fn inner_ports(&self) -> [BTreeSet<(&str, u8)>; 2] {
        let (mut inner, mut claimed) = (BTreeSet::new(), BTreeSet::new());
        for (switch, (_, report)) in &self.switches {
            for neighbour in &report.neighbours {
                let Who::Switch { name, .. } = &neighbour.who else {
                    continue;
                };
                if name == switch || !self.switches.contains_key(name) {
                    continue;
                }
                // Without a file, what is not believed takes out its own port.
                let is_believed = self.believes_lldp(switch, neighbour);
                if is_believed || self.file.is_none() {
                    inner.insert((switch.as_str(), neighbour.port));
                }
                let far = self.far_end(neighbour).filter(|_| is_believed);
                if let Some(End::Switch { port, .. }) = far {
                    let at_far_end = match self.file {
                        Some(_) => &mut inner,
                        None => &mut claimed,
                    };
                    at_far_end.insert((name.as_str(), port));
                }
            }
        }
        let filed = self.file.iter().flat_map(Topology::links);
        let filed = filed.map(|(_, link)| (&link.a, &link.b));
        for ends in filed {
            if let (
                End::Switch { switch, port },
                End::Switch {
                    switch: other,
                    port: far,
                },
            ) = ends
            {
                inner.extend([(switch.as_str(), *port), (other.as_str(), *far)]);
            }
        }
        [inner, claimed]
    }

    /// Whether what LLDP says at a port is believed; a host could say that it is a switch. With a file it is where that has a switch or a
    /// splitter, and where it has nothing, if the other switch hears this port in return. Without one it is where the other switch hears
    /// nobody else at that port.
    pub(crate) fn believes_lldp(&self, switch: &str, neighbour: &NeighbourReport) -> bool {
        let near = End::port(switch, neighbour.port);
        let Some(file) = &self.file else {
            return self.is_from_switch(&near, neighbour);
        };
        match filed(file, &near) {
            Some(far) => matches!(far, End::Switch { .. }),
            None => {
                splitter_links(file).any(|(from, to)| from == near || *to == near)
                    || self.is_heard(&near, neighbour)
            }
        }
    }

    /// Whether the other switch does not contradict what LLDP says at a port.
    fn is_from_switch(&self, near: &End, neighbour: &NeighbourReport) -> bool {
        let Who::Switch { name, .. } = &neighbour.who else {
            return false;
        };
        let far = self.far_end(neighbour);
        let hears_other =
            far.is_some_and(|far| self.heard_at(&far).any(|heard| heard.as_ref() != Some(near)));
        name != near.node() && !hears_other
    }

    /// Whether the port that a neighbour says it is hears this one.
    fn is_heard(&self, near: &End, neighbour: &NeighbourReport) -> bool {
        let far = self.far_end(neighbour);
        far.is_some_and(|far| self.hears(&far, near))
    }

    /// Whether a port hears another one by LLDP.
    pub(super) fn hears(&self, near: &End, far: &End) -> bool {
        self.heard_at(near).any(|heard| heard.as_ref() == Some(far))
    }

    /// What a port hears by LLDP; `None`: a port that is not known.
    fn heard_at(&self, near: &End) -> impl Iterator<Item = Option<End>> {
        let at = match near {
            End::Switch { switch, port } => self.switches.get(switch).map(|(_, report)| (report, *port)),
            End::Host(_) => None,
        };
        let at_port = |n: &&NeighbourReport, port| n.port == port && matches!(n.who, Who::Switch { .. });
        at.into_iter().flat_map(move |(report, port)| {
            let heard = report.neighbours.iter().filter(move |n| at_port(n, port));
            heard.map(|n| self.far_end(n))
        })
    }

    /// The name of a port, or its number.
    fn port_name(&self, switch: &str, port: u8) -> String {
        let said = self
            .switches
            .get(switch)
            .and_then(|(_, report)| report.ports.get(&port));
        said.map_or_else(|| port.to_string(), |said| said.name.clone())
    }
}

/// What the file has at the other end of a port's cable.
fn filed<'f>(file: &'f Topology, near: &End) -> Option<&'f End> {
    let link = file.link(file.link_at(near)?)?;
    Some(if link.a == *near { &link.b } else { &link.a })
}

/// The ends of each link of a splitter.
fn splitter_links(file: &Topology) -> impl Iterator<Item = (End, &End)> {
    file.splitters().iter().flat_map(|Splitter { from, links }| {
        let links = links.iter();
        links.map(move |(port, far)| (End::port(from, *port), far))
    })
}

#[cfg(test)]
mod tests {
    use castnet_topology::DEFAULT_MTU;

    use super::super::tests::facts;
    use super::*;

    #[test]
    fn cables_that_are_not_as_in_the_file_are_named() {
        let mut facts = facts();
        assert!(facts.wrong_links("a").is_empty(), "there is no file");
        let file = |links: &[(&str, u8, &str, u8)]| {
            let mut file = Topology::new();
            for switch in ["a", "b", "c"] {
                file.add_switch(
                    switch,
                    (0..4).map(|port| (port, [6, 0, 0, 1, switch.as_bytes()[0], port])),
                )
                .unwrap();
            }
            file.add_plain("p", 4).unwrap();
            file.add_host("h9", None, None).unwrap();
            for (near, port, far, far_port) in links {
                let far = match *far {
                    "h9" => End::host("h9"),
                    far => End::port(far, *far_port),
                };
                file.connect(End::port(*near, *port), far, DEFAULT_MTU).unwrap();
            }
            Some(file)
        };
        // Links of a splitter are not among the others.
        for (from, to) in [("a", "b"), ("b", "a")] {
            let mut with_splitter = file(&[]).unwrap();
            for switch in ["a", "b"] {
                let prefix = format!("10.{}.0.0/24", switch.as_bytes()[0]);
                with_splitter
                    .set_mcst_prefix(switch, prefix.parse().unwrap())
                    .unwrap();
            }
            let splitter = Splitter {
                from: from.into(),
                links: vec![(1, End::port(to, 1))],
            };
            with_splitter.add_splitter(splitter).unwrap();
            facts.file = Some(with_splitter);
            assert!(facts.wrong_links("a").is_empty());
        }
        let seen = "port a1 leads to port b1 of b, and to";
        for (links, wrong) in [
            (&[("a", 1, "b", 1)][..], None),
            // Another port, another switch, a host, nothing.
            (&[("a", 1, "b", 0)], Some("port b0 of b")),
            (&[("a", 1, "c", 1), ("b", 1, "a", 0)], Some("port 1 of c")),
            (&[("a", 1, "h9", 0)], Some("host h9")),
            (&[], Some("nothing")),
            // It may pass on what others say.
            (&[("a", 1, "p", 0), ("p", 1, "b", 1)], None),
        ] {
            facts.file = file(links);
            let expected = wrong.map(|wrong| format!("{seen} {wrong} in the topology file"));
            assert_eq!(facts.wrong_links("a"), Vec::from_iter(expected));
        }
        facts.switches.get_mut("a").unwrap().0 = Reach::Down("gone".into());
        assert!(facts.wrong_links("a").is_empty(), "its last word");
    }
}
