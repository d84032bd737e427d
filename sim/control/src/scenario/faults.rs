//! What fails: controllers, etcd or the store, agents, switches, links between them, and the network of control.

use std::time::Duration;

use super::{Backing, Loss, World};
use crate::net::Fault;

/// Longest time for which a clock stands still, in milliseconds: by its own clock, the lease of the controller goes on.
const STOPPED_MS_MAX: u64 = 1500;

impl World {
    /// Something fails, half of it at the controller that leads.
    pub(super) async fn fail(&mut self, leads: usize) -> Result<Loss, String> {
        let names: Vec<String> = self.switches.keys().cloned().collect();
        let switch = self.random.one(&names).clone();
        let fault = self.random.below(18);
        match fault {
            0 | 1 => {
                let all = self.candidates.addresses.len() as u64;
                let n = if fault == 0 {
                    leads
                } else {
                    self.random.below(all) as usize
                };
                self.kill(n).await;
            }
            2 | 3 => self.fail_backing(fault == 3).await,
            4 => {
                self.log.line(format_args!("the agent of {switch} is silent"));
                if let Some(switch) = self.switches.get_mut(&switch) {
                    switch.silence().await;
                }
                self.silent.push(switch);
            }
            5 => {
                self.log.line(format_args!("{switch} stops"));
                if let Some(switch) = self.switches.get_mut(&switch) {
                    switch.stop().await;
                }
                self.stopped.push(switch);
                return Ok(Loss::State);
            }
            6 => {}
            7..12 => self.fail_network(leads),
            12 => {
                let delay = Duration::from_millis(self.random.below(1500));
                self.log.line(format_args!("each write takes {delay:?}"));
                self.backing.slow(delay);
            }
            13 => {
                self.log.line(format_args!("writes stand still"));
                match &self.backing {
                    Backing::Etcd(etcd, _) => etcd.hold(true),
                    Backing::Store(store) => drop(store.hold()),
                }
            }
            14 => match &self.backing {
                Backing::Etcd(etcd, _) => {
                    self.log.line(format_args!("an answer of etcd is lost"));
                    etcd.lose_answer(self.random.below(4) as usize);
                }
                Backing::Store(store) => {
                    self.log.line(format_args!("some writes fail"));
                    store.seed(Some(self.random.below(u64::MAX)));
                }
            },
            15 => self.stop_clock(leads).await,
            _ => return self.lose_link().await,
        }
        Ok(Loss::Nothing)
    }

    async fn kill(&mut self, n: usize) {
        self.log.line(format_args!("c{n} is killed and starts again"));
        self.candidates.restart(n).await;
    }

    /// The controller that leads is killed, and starts again.
    pub(super) async fn kill_leader(&mut self) {
        let (leads, _) = self.candidates.leader(None).await;
        self.kill(leads).await;
    }

    /// The controller that leads stands still, and its clock, too, as in a virtual machine that is suspended. By the clocks of the others
    /// its lease ends meanwhile. When it goes on, it believes that it leads.
    ///
    /// A clock does nothing worse here. Those that are asked only go forward, and nodes tell each other how long something takes, never
    /// when it is. The time of day is shown in events and in the audit log, and nothing is decided by it.
    async fn stop_clock(&mut self, leads: usize) {
        let node = format!("c{leads}");
        self.log.line(format_args!("{node} and its clock stand still"));
        self.candidates.net.fail(&node, None, Fault::Held([true, true]));
        if let Backing::Etcd(etcd, _) = &self.backing {
            etcd.end_lead();
        }
        self.pass(STOPPED_MS_MAX).await;
        self.log.line(format_args!("{node} goes on"));
        self.candidates.net.fail(&node, None, Fault::None);
    }

    /// Members of etcd are killed, or the store fails.
    async fn fail_backing(&mut self, more: bool) {
        match &mut self.backing {
            Backing::Etcd(etcd, members) => {
                let any = self.random.below(*members as u64) as usize;
                let more = (more && *members > 1).then_some((any + 1) % *members);
                for n in std::iter::once(any).chain(more) {
                    self.log.line(format_args!("e{n} is killed"));
                    etcd.kill(n).await;
                    self.killed.push(n);
                }
            }
            Backing::Store(store) => {
                self.log.line(format_args!("the store fails"));
                store.set_broken(true);
            }
        }
    }

    /// A fault between two nodes, or between one and all others.
    fn fail_network(&mut self, leads: usize) {
        let random = &mut self.random;
        let nodes = self.candidates.net.nodes();
        let (any, other) = (random.one(&nodes).clone(), random.one(&nodes).clone());
        let node = if random.below(2) == 0 {
            format!("c{leads}")
        } else {
            any
        };
        let ways = [[true, true], [true, false], [false, true]];
        let fault = match random.below(4) {
            3 => Fault::Cut,
            way => Fault::Held(ways[way as usize]),
        };
        let other = Some(&*other).filter(|_| random.below(2) == 0);
        let all = other.unwrap_or("all");
        self.log.line(format_args!("{fault:?} between {node} and {all}"));
        self.candidates.net.fail(&node, other, fault);
    }

    /// All faults end.
    pub(super) async fn heal(&mut self) -> Result<(), String> {
        self.log.line(format_args!("the fault ends"));
        self.candidates.net.heal();
        for link in std::mem::take(&mut self.cut) {
            self.set_link(link, true);
        }
        self.backing.slow(Duration::ZERO);
        match &mut self.backing {
            Backing::Etcd(etcd, _) => {
                etcd.hold(false);
                etcd.lose_none();
                for n in self.killed.drain(..) {
                    etcd.restart(n).await;
                }
            }
            Backing::Store(store) => {
                store.set_broken(false);
                store.seed(None);
                store.release();
            }
        }
        for name in self.silent.drain(..) {
            if let Some(switch) = self.switches.get_mut(&name) {
                switch.serve().await;
            }
        }
        for name in self.stopped.drain(..) {
            if let Some(switch) = self.switches.get_mut(&name) {
                switch.boot().await.map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }
}
