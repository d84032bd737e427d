//! Which addresses a device has rules for, so that their frames come in by the queue of their group's worker.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, Weak};

use castnet_port::{FlowTable, Steered};

use crate::fence::device::Device;

/// What a rule looks at. Devices differ in what they can match in hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The destination address alone.
    Wide,
    /// And that it is RoCEv2's UDP port.
    Narrow,
}

/// What makes and takes away rules.
pub(crate) trait Rules {
    /// A rule that is there.
    type Rule;

    /// # Errors
    /// The device refuses: its driver's words.
    fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Self::Rule, String>;

    /// Takes a rule away that [`Rules::create`] made. `false` where it stays.
    fn destroy(&self, rule: &Self::Rule) -> bool;
}

/// The rules of one device.
#[derive(Debug)]
pub(crate) struct Flows<R> {
    rules: BTreeMap<Ipv4Addr, (usize, R)>,
    /// What was refused, and is not tried again before something else has gone.
    refused: BTreeMap<Ipv4Addr, usize>,
    /// Forms that may be tried. Once a device has taken one, that is it; once it has taken none, it is left alone.
    forms: &'static [Form],
    /// Of the latest refusal.
    reason: String,
}

impl<R> Default for Flows<R> {
    fn default() -> Self {
        Self {
            rules: BTreeMap::new(),
            refused: BTreeMap::new(),
            forms: &[Form::Wide, Form::Narrow],
            reason: String::new(),
        }
    }
}

impl<R> Flows<R> {
    /// Makes the device's rules those that are wanted, each an address and its queue, with as few changes as that takes.
    pub(crate) fn steer(
        &mut self,
        device: &impl Rules<Rule = R>,
        wanted: impl IntoIterator<Item = (Ipv4Addr, usize)>,
    ) -> Steered {
        let wanted: BTreeMap<_, _> = wanted.into_iter().collect();
        let before = self.rules.len();
        // Two rules for one address would contradict each other, so the old one goes first. Meanwhile frames come by any queue,
        // and workers hand them over.
        self.rules
            .retain(|address, (queue, rule)| wanted.get(address) == Some(queue) || !device.destroy(rule));
        if self.rules.len() < before {
            self.refused.clear();
        }
        self.refused
            .retain(|address, queue| wanted.get(address) == Some(queue));
        for (&address, &queue) in &wanted {
            if self.rules.contains_key(&address) || self.refused.contains_key(&address) {
                continue;
            }
            match self.create(device, address, queue) {
                Some(rule) => drop(self.rules.insert(address, (queue, rule))),
                None => drop(self.refused.insert(address, queue)),
            }
        }
        let right =
            |(address, queue): (&Ipv4Addr, &usize)| self.rules.get(address).is_some_and(|r| r.0 == *queue);
        let refused = wanted.iter().filter(|w| !right(*w)).count();
        let reason = if refused == 0 {
            String::new()
        } else {
            self.reason.clone()
        };
        Steered {
            rules: self.rules.len(),
            refused,
            reason,
        }
    }

    fn create(&mut self, device: &impl Rules<Rule = R>, address: Ipv4Addr, queue: usize) -> Option<R> {
        for (n, form) in self.forms.iter().enumerate() {
            match device.create(address, queue, *form) {
                Ok(rule) => {
                    self.forms = &self.forms[n..=n];
                    return Some(rule);
                }
                Err(reason) => self.reason = reason,
            }
        }
        if self.rules.is_empty() && self.forms.len() > 1 {
            self.forms = &[];
        }
        None
    }
}

/// What control holds of a device. The device's end does not wait for it.
#[derive(Debug)]
pub(crate) struct DeviceFlows(pub(crate) Weak<Device>);

impl FlowTable for DeviceFlows {
    fn steer(&self, wanted: &[(Ipv4Addr, usize)]) -> Steered {
        let Some(device) = self.0.upgrade() else {
            return Steered::default();
        };
        let queues = device.rx_queues;
        let mut flows = device.flows.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a thread that has several queues, the first is the one of its number.
        let steered = flows.steer(
            &*device,
            wanted.iter().copied().filter(|(_, queue)| *queue < queues),
        );
        device.note_rules(steered.rules);
        steered
    }
}

impl DeviceFlows {
    /// Where there is a choice of queues.
    pub(crate) fn of(device: &Arc<Device>) -> Option<Arc<dyn FlowTable>> {
        (device.rx_queues > 1).then(|| Arc::new(Self(Arc::downgrade(device))) as _)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;
    use crate::fence::flow::words;

    /// A device with room for so many rules, of one form, whose refusals are counted.
    struct Fake {
        room: usize,
        form: Option<Form>,
        sticks: bool,
        has: RefCell<BTreeMap<Ipv4Addr, usize>>,
        asked: Cell<usize>,
    }

    impl Fake {
        fn new(room: usize, form: Option<Form>) -> Self {
            Self {
                room,
                form,
                sticks: false,
                has: RefCell::default(),
                asked: Cell::new(0),
            }
        }
    }

    impl Rules for Fake {
        type Rule = Ipv4Addr;

        fn create(&self, address: Ipv4Addr, queue: usize, form: Form) -> Result<Ipv4Addr, String> {
            self.asked.set(self.asked.get() + 1);
            let mut has = self.has.borrow_mut();
            if Some(form) != self.form {
                return Err("not this form".to_owned());
            }
            if has.len() == self.room {
                return Err("full".to_owned());
            }
            assert_eq!(has.insert(address, queue), None, "a second rule for {address}");
            Ok(address)
        }

        fn destroy(&self, rule: &Ipv4Addr) -> bool {
            assert!(self.has.borrow().contains_key(rule), "no rule for {rule}");
            !self.sticks && self.has.borrow_mut().remove(rule).is_some()
        }
    }

    fn address(n: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, 0, n)
    }

    fn wanted() -> impl Strategy<Value = Vec<BTreeMap<u8, usize>>> {
        proptest::collection::vec(
            proptest::collection::btree_map(0..12_u8, 0..3_usize, 0..12),
            1..12,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The twin forgets all rules each time and makes those that are wanted.
        #[test]
        fn a_device_has_the_rules_that_are_wanted(steps in wanted(), narrow: bool, room in 0..14_usize) {
            let form = if narrow { Form::Narrow } else { Form::Wide };
            let device = Fake::new(room, Some(form));
            let mut flows = Flows::default();
            for step in &steps {
                let twin: BTreeMap<_, _> = step.iter().map(|(n, queue)| (address(*n), *queue)).collect();
                let steered = flows.steer(&device, twin.clone());
                let has = device.has.borrow();
                prop_assert!(has.iter().all(|(address, queue)| twin.get(address) == Some(queue)));
                prop_assert_eq!(has.len(), steered.rules);
                prop_assert_eq!(has.len() + steered.refused, twin.len());
                // As many as fit, but that room is looked for again only once something has gone.
                prop_assert!(room > twin.len() || has.len() <= room);
                prop_assert!(room < 12 || *has == twin);
                prop_assert_eq!(steered.refused == 0, steered.reason.is_empty());
                drop(has);
                let asked = device.asked.get();
                prop_assert_eq!(flows.steer(&device, twin), steered);
                prop_assert_eq!(device.asked.get(), asked, "nothing changed, so nobody is asked");
            }
        }
    }

    #[test]
    fn a_device_that_takes_no_rule_is_left_alone() {
        let device = Fake::new(9, None);
        let mut flows = Flows::default();
        let steered = flows.steer(&device, [(address(1), 1), (address(2), 0)]);
        assert_eq!(
            (steered.rules, steered.refused, steered.reason.as_str()),
            (0, 2, "not this form")
        );
        assert_eq!(device.asked.get(), 2, "both forms of the first rule");
        flows.steer(&device, []);
        flows.steer(&device, [(address(3), 1)]);
        assert_eq!(device.asked.get(), 2);
    }

    #[test]
    fn a_rule_that_stays_against_our_will_is_not_doubled() {
        let mut device = Fake::new(9, Some(Form::Wide));
        let mut flows = Flows::default();
        flows.steer(&device, [(address(1), 1)]);
        device.sticks = true;
        let steered = flows.steer(&device, [(address(1), 2)]);
        assert_eq!(
            (steered.rules, steered.refused),
            (1, 1),
            "the old one leads to the wrong queue"
        );
        device.sticks = false;
        let steered = flows.steer(&device, [(address(1), 2)]);
        assert_eq!((steered.rules, steered.refused), (1, 0));
        assert_eq!(device.has.borrow()[&address(1)], 2);
    }

    #[test]
    fn a_device_is_given_the_address_and_the_queue() {
        assert_eq!(
            words(address(7), 3, Form::Wide),
            "ingress pattern eth / ipv4 dst is 10.200.0.7 / end actions queue index 3 / end"
        );
        assert_eq!(
            words(address(7), 0, Form::Narrow),
            "ingress pattern eth / ipv4 proto is 17 dst is 10.200.0.7 / udp dst is 4791 / end actions queue index 0 / end"
        );
    }
}
