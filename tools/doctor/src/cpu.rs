//! Checks for the speed of a worker: its core, the clock of the core, and vector instructions.

use super::machine::{Machine, cores};
use super::{Check, Use};

/// In the order of the table.
pub(crate) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<_> = [isolation(machine), siblings(machine)]
        .into_iter()
        .flatten()
        .collect();
    checks.push(governor(machine));
    checks.extend(vectors(machine));
    checks
}

const CPUS: &str = "/sys/devices/system/cpu";

fn isolation(machine: &Machine) -> Option<Check> {
    let check = Check::of(Use::Speed, "isolated cores");
    let isolated = machine.read(&format!("{CPUS}/isolated"))?;
    let tickless = machine.read(&format!("{CPUS}/nohz_full")).unwrap_or_default();
    // Some kernels write "(null)" for an empty list.
    let tickless = tickless.trim_matches(['(', ')']).replace("null", "");
    Some(if isolated.is_empty() {
        check.warn(
            "none: other programs can interrupt a worker",
            "for steady latency boot with isolcpus=N nohz_full=N rcu_nocbs=N, and pin workers there",
        )
    } else if tickless.is_empty() {
        check.warn(
            format!("{isolated}, but the timer tick interrupts them"),
            format!("boot with nohz_full={isolated} rcu_nocbs={isolated} as well"),
        )
    } else {
        check.ok(format!("{isolated}; without tick: {tickless}"))
    })
}

/// Hardware threads of the same processor core, including `core`.
pub(crate) fn siblings_of(machine: &Machine, core: usize) -> Vec<usize> {
    let list = machine.read(&format!("{CPUS}/cpu{core}/topology/thread_siblings_list"));
    list.and_then(|list| cores(&list)).unwrap_or_default()
}

fn siblings(machine: &Machine) -> Option<Check> {
    let online = machine.read(&format!("{CPUS}/online"))?;
    let mut groups: Vec<_> = cores(&online)?
        .into_iter()
        .map(|core| siblings_of(machine, core))
        .filter(|group| group.len() > 1)
        .collect();
    groups.sort();
    groups.dedup();
    let check = Check::of(Use::Speed, "hardware threads");
    Some(if groups.is_empty() {
        check.ok("each core has one")
    } else {
        let first: Vec<_> = groups.iter().map(|group| group[0].to_string()).collect();
        let found = format!(
            "two or more share a core: give workers one each, such as {}",
            first.join(", ")
        );
        check.ok(found)
    })
}

fn governor(machine: &Machine) -> Check {
    let check = Check::of(Use::Speed, "frequency governor");
    let of = |name: String| {
        let number = name.strip_prefix("cpu")?;
        number.parse::<usize>().ok()?;
        machine.read(&format!("{CPUS}/{name}/cpufreq/scaling_governor"))
    };
    let mut governors: Vec<_> = machine.names(CPUS).into_iter().filter_map(of).collect();
    governors.sort();
    governors.dedup();
    match governors.as_slice() {
        [] => check.ok("none: the kernel does not change clocks here"),
        [one] if one == "performance" => check.ok("performance"),
        _ => check.warn(
            format!(
                "{}: the clock of a core falls while it seems idle",
                governors.join(", ")
            ),
            "cpupower frequency-set -g performance (or write it into cpu*/cpufreq/scaling_governor)",
        ),
    }
}

/// Vector instructions that this binary uses here.
fn vectors(machine: &Machine) -> Option<Check> {
    let check = Check::of(Use::Speed, "vector instructions");
    let flags = machine.field("/proc/cpuinfo", "flags")?;
    let flags: Vec<_> = flags.split_whitespace().collect();
    let has = |all: &[&str]| all.iter().all(|flag| flags.contains(flag));
    let sums = match () {
        () if has(&["avx512f", "avx512bw", "avx512vl", "avx512dq"]) => "AVX-512",
        () if has(&["avx2"]) => "AVX2",
        () => "SSE2 (this processor shows no AVX2)",
    };
    let crc = match () {
        () if has(&["avx512f", "avx512bw", "vpclmulqdq", "pclmulqdq"]) => "VPCLMULQDQ, 64 bytes at once",
        () if has(&["pclmulqdq"]) => "PCLMULQDQ, 16 bytes at once",
        () => "tables",
    };
    let found = format!("sums of collectives: {sums}; ICRC of payloads: {crc}");
    Some(if has(&["avx2", "pclmulqdq"]) {
        check.ok(found)
    } else {
        check.warn(
            found,
            "let the virtual machine see the host's processor: -cpu host",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::machine::tests::Fake;

    fn found(fake: &Fake, what: &str) -> (Level, String) {
        let checks = checks(&fake.machine());
        let check = checks.into_iter().find(|c| c.what == what);
        let check = check.unwrap_or_else(|| panic!("no check {what}"));
        (check.level, check.found + " | " + &check.advice)
    }

    #[test]
    fn cores_for_themselves_at_full_clock_with_wide_vectors() {
        let fake = Fake::new(&[
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/cpu/nohz_full", "2-3\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            (
                "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0,2\n",
            ),
            (
                "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
                "1,3\n",
            ),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance\n",
            ),
            (
                "proc/cpuinfo",
                "flags : sse2 avx2 avx512f avx512bw avx512vl avx512dq pclmulqdq vpclmulqdq\n",
            ),
        ]);
        assert!(checks(&fake.machine()).iter().all(|c| c.level == Level::Ok));
        assert!(found(&fake, "hardware threads").1.contains("such as 0, 1"));
        let vectors = found(&fake, "vector instructions").1;
        assert!(
            vectors.contains("AVX-512") && vectors.contains("VPCLMULQDQ"),
            "{vectors}"
        );
    }

    #[test]
    fn what_slows_a_worker_is_named_with_the_remedy() {
        let fake = Fake::new(&[
            ("sys/devices/system/cpu/isolated", "2\n"),
            ("sys/devices/system/cpu/nohz_full", "(null)\n"),
            ("sys/devices/system/cpu/online", "0-2\n"),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave\n",
            ),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "performance\n",
            ),
            ("sys/devices/system/cpu/cpufreq/policy0", ""),
            ("proc/cpuinfo", "flags : sse2\n"),
        ]);
        let (level, text) = found(&fake, "isolated cores");
        assert!(level == Level::Warn && text.contains("nohz_full=2"), "{text}");
        let (level, text) = found(&fake, "frequency governor");
        assert!(
            level == Level::Warn && text.contains("performance, powersave"),
            "{text}"
        );
        assert_eq!(found(&fake, "vector instructions").0, Level::Warn);
        assert_eq!(found(&fake, "hardware threads").0, Level::Ok);
    }
}
