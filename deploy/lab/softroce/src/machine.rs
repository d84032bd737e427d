//! One virtual machine: its QEMU.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::LabError;
use crate::image::Image;
use crate::network::{data_mac, data_tap, mac_text, management_mac, management_tap};
use crate::process::inside;

/// QEMU's cache of translated code per machine, in MiB. Without a limit it grows by 300 MiB.
const TRANSLATED_MIB: u32 = 128;

pub(crate) struct Machine<'a> {
    pub(crate) index: usize,
    pub(crate) netns: &'a str,
    pub(crate) mtu: u32,
    pub(crate) memory_mib: u32,
    /// For sockets and logs.
    pub(crate) directory: &'a Path,
    /// Mounted at /share.
    pub(crate) share: &'a Path,
}

impl Machine<'_> {
    /// Starts QEMU, in a process group of its own: Ctrl-C at a terminal is for the lab.
    pub(crate) fn start(&self, image: &Image) -> Result<Child, LabError> {
        let log = self.directory.join("qemu.log");
        let log = File::create(&log).map_err(LabError::at("making", &log))?;
        let errors = log.try_clone().map_err(LabError::io("opening a log"))?;
        let mut command = self.command(image);
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0);
        command.spawn().map_err(LabError::io("starting QEMU"))
    }

    fn command(&self, image: &Image) -> Command {
        let Self { index, directory, .. } = self;
        let path = |name: &str| comma(&directory.join(name));
        let mut command = inside(self.netns, "qemu-system-x86_64");
        let mut words = |line: &[&str]| {
            command.args(line);
        };
        words(&[
            "-name",
            &format!("h{index}"),
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
        ]);
        words(&[
            "-display",
            "none",
            "-machine",
            "pc,usb=off,vmport=off,mem-merge=off",
        ]);
        words(&["-accel", &format!("tcg,thread=multi,tb-size={TRANSLATED_MIB}")]);
        words(&[
            "-cpu",
            // As x86-64-v2, which programs with DPDK are built for.
            "qemu64,+rdrand,+ssse3,+sse4.1,+sse4.2,+popcnt",
            "-smp",
            "1",
            "-m",
            &self.memory_mib.to_string(),
        ]);
        words(&["-kernel", &image.kernel().to_string_lossy()]);
        words(&["-initrd", &image.initramfs().to_string_lossy()]);
        words(&["-append", &self.kernel_command_line()]);

        words(&[
            "-chardev",
            &format!("file,id=console,path={}", path("console.log")),
        ]);
        for line in ["agent", "shell"] {
            let socket = path(&format!("{line}.sock"));
            words(&[
                "-chardev",
                &format!("socket,id={line},path={socket},server=on,wait=off"),
            ]);
        }
        for line in ["console", "agent", "shell"] {
            words(&["-serial", &format!("chardev:{line}")]);
        }
        let share = comma(self.share);
        words(&[
            "-fsdev",
            &format!("local,id=share,path={share},security_model=none,multidevs=remap"),
        ]);
        words(&["-device", "virtio-9p-pci,fsdev=share,mount_tag=share,addr=5"]);
        let taps = [
            ("data", data_tap(*index), data_mac(*index), 3),
            ("management", management_tap(*index), management_mac(*index), 4),
        ];
        for (id, tap, mac, slot) in taps {
            words(&[
                "-netdev",
                &format!("tap,id={id},ifname={tap},script=no,downscript=no,vnet_hdr=off,vhost=off"),
            ]);
            words(&["-device", &nic(id, mac, slot)]);
        }
        command
    }

    fn kernel_command_line(&self) -> String {
        format!(
            "console=ttyS0 loglevel=4 panic=-1 ipv6.disable=1 mitigations=off nokaslr random.trust_cpu=on \
             no_timer_check nowatchdog rcupdate.rcu_expedited=1 \
             softroce.index={} softroce.mtu={}",
            self.index, self.mtu
        )
    }
}

/// A NIC without offloads: a frame on the tap is complete, as on a wire, which RoCE's ICRC requires.
fn nic(id: &str, mac: [u8; 6], slot: u32) -> String {
    let offloads: String = [
        "csum",
        "guest_csum",
        "gso",
        "guest_tso4",
        "guest_tso6",
        "guest_ecn",
        "guest_ufo",
        "host_tso4",
        "host_tso6",
        "host_ecn",
        "host_ufo",
    ]
    .map(|offload| format!(",{offload}=off"))
    .concat();
    format!(
        "virtio-net-pci,netdev={id},mac={},addr={slot},romfile=,rx_queue_size=1024{offloads}",
        mac_text(mac)
    )
}

/// A comma in QEMU's option lists is written twice.
fn comma(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

pub(crate) fn console_tail(directory: &Path) -> String {
    const LINES: usize = 30;
    let mut tail = String::new();
    for name in ["console.log", "qemu.log"] {
        let bytes = fs::read(directory.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            tail.push_str(&format!("  {line}\n"));
        }
    }
    tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled_and_consoles_cut() {
        assert_eq!(comma(Path::new("/a,b/c")), "/a,,b/c");
        let folder = tempfile::tempdir().expect("a folder");
        let text: String = (0..100).map(|n| format!("line {n}\r\n\r\n")).collect();
        fs::write(folder.path().join("console.log"), text).expect("written");
        let tail = console_tail(folder.path());
        assert_eq!(tail.lines().count(), 30);
        assert!(tail.ends_with("  line 99\n"));
        assert_eq!(console_tail(Path::new("/nowhere")), "");
    }

    #[test]
    fn the_interface_has_every_offload_off() {
        let device = nic("data", data_mac(1), 3);
        assert!(
            device.contains("mac=02:ca:57:00:00:01") && device.contains("host_tso4=off"),
            "{device}"
        );
    }
}
