//! Several ranks of a job in this process.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use castnet_console::exit::{Failure, Outcome};

use super::RankArgs;
use crate::Stop;

/// Runs `part` for each rank of this process, each on a thread with an RNIC of its own. The first failure stops the others,
/// and is returned.
pub fn each_rank(first: &RankArgs, stop: &Stop, part: impl Fn(&RankArgs) -> Outcome + Sync) -> Outcome {
    if first.ranks_here == 1 {
        return part(first);
    }
    if first.device.is_for_one_thread() {
        return Err(Failure::usage(
            "--ranks-here needs an interface or device that several threads can open; this one belongs to one thread",
        )
        .next("--interface with a network interface, or --rnic verbs"));
    }
    let failure = Mutex::new(None);
    let run = |number| {
        let mut rank = first.clone();
        rank.rank += number;
        if let Err(error) = part(&rank) {
            let mut failure = failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            failure.get_or_insert(error);
            stop.store(true, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for number in 1..first.ranks_here {
            let run = &run;
            scope.spawn(move || run(number));
        }
        run(0);
    });
    let failure = failure
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    failure.map_or(Ok(()), Err)
}
