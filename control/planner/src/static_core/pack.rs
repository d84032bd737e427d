//! Covers with fewer copies than an exact one has: some addresses then lead to switches without members, which drop their copies (PEEL 3.2).

use core::net::Ipv4Addr;
use std::collections::{BTreeSet, HashMap};

/// An address that leads to two members or more.
#[derive(Clone)]
pub(super) struct Candidate<'a> {
    pub(super) address: Ipv4Addr,
    /// All switches that get a copy, but for the one next to the source.
    pub(super) switches: Vec<&'a str>,
}

/// A cover of the members below a candidate.
#[derive(Clone, Debug)]
struct Cover {
    /// Copies of a packet, one for each address and for each member that has none.
    copies: usize,
    /// Switches without members that get one.
    over: usize,
    addresses: Vec<Ipv4Addr>,
}

/// A candidate in the tree of candidates: each contains those below it.
struct Node<'a> {
    candidate: &'a Candidate<'a>,
    below: Vec<usize>,
    /// Members in none of those below.
    single: usize,
    over: usize,
}

/// The addresses of a cover with at most `most` copies, of those the one that over-covers fewest switches, and of those one with fewest
/// copies. Candidates that overlap with a larger one, and are not inside of it, are left out. `Err`: the fewest copies that are possible.
pub(super) fn pack(
    mut candidates: Vec<Candidate<'_>>,
    members: &BTreeSet<&str>,
    most: usize,
) -> Result<Vec<Ipv4Addr>, usize> {
    candidates.sort_by_key(|candidate| (core::cmp::Reverse(candidate.switches.len()), candidate.address));
    let mut innermost: HashMap<&str, usize> = HashMap::new();
    let (mut nodes, mut roots): (Vec<Node<'_>>, Vec<usize>) = (Vec::new(), Vec::new());
    for candidate in &candidates {
        let parents: BTreeSet<Option<usize>> = candidate
            .switches
            .iter()
            .map(|name| innermost.get(name).copied())
            .collect();
        let Some(parent) = parents.first().copied().filter(|_| parents.len() == 1) else {
            continue;
        };
        let at = nodes.len();
        match parent {
            Some(parent) => nodes[parent].below.push(at),
            None => roots.push(at),
        }
        innermost.extend(candidate.switches.iter().map(|name| (*name, at)));
        let is_over = |name: &&&str| !members.contains(**name);
        nodes.push(Node {
            candidate,
            below: Vec::new(),
            single: 0,
            over: candidate.switches.iter().filter(is_over).count(),
        });
    }
    let mut single = 0;
    for member in members {
        match innermost.get(member) {
            Some(at) => nodes[*at].single += 1,
            None => single += 1,
        }
    }
    let least = single + roots.len();
    if least > most {
        return Err(least);
    }
    // Those below come after the one that contains them.
    let mut covers: Vec<Vec<Cover>> = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate().rev() {
        let mut own = joined(node.single, node.below.iter().map(|below| &covers[*below]), most);
        own.retain(|cover| cover.over < node.over);
        if own.first().is_none_or(|first| first.copies > 1) {
            let whole = Cover {
                copies: 1,
                over: node.over,
                addresses: vec![node.candidate.address],
            };
            own.insert(0, whole);
        }
        covers[at] = own;
    }
    let all = joined(single, roots.iter().map(|root| &covers[*root]), most);
    all.into_iter()
        .next_back()
        .map(|cover| cover.addresses)
        .ok_or(least)
}

/// Covers of several parts together, and of `single` members beside them: copies increase from one to the next, and over-covered switches
/// decrease.
fn joined<'c>(single: usize, parts: impl Iterator<Item = &'c Vec<Cover>>, most: usize) -> Vec<Cover> {
    let alone = Cover {
        copies: single,
        over: 0,
        addresses: Vec::new(),
    };
    let mut all = vec![alone];
    for part in parts {
        let mut by_copies: Vec<Option<(usize, usize, usize)>> = Vec::new();
        for (i, one) in all.iter().enumerate() {
            for (j, other) in part.iter().enumerate() {
                let (copies, over) = (one.copies + other.copies, one.over + other.over);
                if copies > most {
                    break;
                }
                by_copies.resize(by_copies.len().max(copies + 1), None);
                if by_copies[copies].is_none_or(|(least, ..)| over < least) {
                    by_copies[copies] = Some((over, i, j));
                }
            }
        }
        let mut best = usize::MAX;
        let mut next = Vec::new();
        for (copies, found) in by_copies.into_iter().enumerate() {
            let Some((over, i, j)) = found.filter(|(over, ..)| *over < best) else {
                continue;
            };
            best = over;
            let addresses = [&all[i].addresses[..], &part[j].addresses].concat();
            next.push(Cover {
                copies,
                over,
                addresses,
            });
        }
        all = next;
    }
    all.retain(|cover| cover.copies <= most);
    all
}
