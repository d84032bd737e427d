//! The kernel modules that guests load, in order.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::LabError;

/// The interfaces, the share, and rxe with all that its programs open. rxe asks the crypto API for "crc32", which no
/// dependency names, so `crc32_generic` is named, and comes before it.
pub(crate) const NEEDED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
];

/// Modules that guests load if the kernel has them: netem, for slow links.
pub(crate) const WELCOME: &[&str] = &["sch_netem"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its file, below lib/modules/VERSION.
    pub(crate) path: String,
    /// Whether the guest fails if it does not load.
    pub(crate) needed: bool,
}

impl Module {
    pub(crate) fn name(&self) -> String {
        name(&self.path)
    }
}

/// depmod(8)'s modules.dep: each module's file, and the files of those that it needs.
pub(crate) struct Dependencies {
    modules: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl Dependencies {
    pub(crate) fn parse(dep: &str, builtin: &str) -> Self {
        let modules = dep
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(path, needs)| {
                let needs = needs.split_whitespace().map(name).collect();
                (name(path), (path.trim().to_owned(), needs))
            })
            .collect();
        Self {
            modules,
            builtin: builtin.lines().map(name).collect(),
        }
    }

    /// Those of `needed` and `welcome` with all that they need, each once and after what it needs.
    pub(crate) fn order(&self, needed: &[&str], welcome: &[&str]) -> Result<Vec<Module>, LabError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for wanted in needed {
            self.visit(wanted, true, &mut seen, &mut order)?;
        }
        for wanted in welcome {
            if self.modules.contains_key(*wanted) {
                self.visit(wanted, false, &mut seen, &mut order)?;
            }
        }
        Ok(order)
    }

    fn visit(
        &self,
        module: &str,
        needed: bool,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<(), LabError> {
        if self.builtin.contains(module) || !seen.insert(module.to_owned()) {
            return Ok(());
        }
        let Some((path, needs)) = self.modules.get(module) else {
            return Err(LabError::package(
                format!("kernel module {module}"),
                "the kernel package has no such module, and the kernel none built in",
            ));
        };
        for need in needs {
            self.visit(need, needed, seen, order)?;
        }
        order.push(Module {
            path: path.clone(),
            needed,
        });
        Ok(())
    }
}

/// `kernel/a/9pnet-x.ko.xz` is module `9pnet_x`: dashes and underscores are the same to modprobe(8).
fn name(path: &str) -> String {
    let file = path.trim().rsplit('/').next().unwrap_or_default();
    let stem = file.split_once(".ko").map_or(file, |(stem, _)| stem);
    stem.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn modules_come_after_what_they_need_and_built_in_ones_not_at_all() {
        let dependencies = Dependencies::parse(
            "kernel/net/9p/9pnet.ko:\nkernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n\
             kernel/fs/netfs/netfs.ko:\nkernel/x/crc32-pclmul.ko.xz:\nkernel/y/unused.ko:\n",
            "kernel/drivers/virtio/virtio_pci.ko\n",
        );
        let order = dependencies
            .order(&["virtio_pci", "9p", "9pnet"], &["crc32_pclmul", "absent"])
            .expect("an order");
        let names: Vec<_> = order.iter().map(|m| (m.name(), m.needed)).collect();
        assert_eq!(
            names,
            [
                ("9pnet".to_owned(), true),
                ("netfs".into(), true),
                ("9p".into(), true),
                ("crc32_pclmul".into(), false)
            ]
        );
        let error = dependencies.order(&["absent"], &[]).expect_err("no such module");
        assert!(error.to_string().contains("absent"), "{error}");
    }

    proptest! {
        /// Module n needs some of the modules below n; whatever is asked for, the order is closed and without repetition.
        #[test]
        fn every_order_is_closed_and_topological(
            needs in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..4), 1..30),
            wanted in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        ) {
            let edges: Vec<BTreeSet<usize>> = needs.iter().enumerate()
                .map(|(n, list)| list.iter().filter(|_| n > 0).map(|i| i.index(n.max(1))).collect()).collect();
            let text: String = edges.iter().enumerate().map(|(n, list)| {
                let list: Vec<_> = list.iter().map(|m| format!("k/m{m}.ko")).collect();
                format!("k/m{n}.ko: {}\n", list.join(" "))
            }).collect();
            let wanted: Vec<String> = wanted.iter().map(|i| format!("m{}", i.index(edges.len()))).collect();
            let asked: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let order = Dependencies::parse(&text, "").order(&asked, &[]).expect("an order");
            let place: BTreeMap<String, usize> = order.iter().enumerate().map(|(at, m)| (m.name(), at)).collect();
            prop_assert_eq!(place.len(), order.len());
            for name in &wanted {
                prop_assert!(place.contains_key(name));
            }
            for (n, list) in edges.iter().enumerate() {
                if let Some(at) = place.get(&format!("m{n}")) {
                    for m in list {
                        let before = place[&format!("m{m}")];
                        prop_assert!(before < *at);
                    }
                }
            }
        }
    }
}
