//! A store on a disk that is full for a while.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use castnet_controller::Controller;
use castnet_proto::v1;
use tempfile::TempDir;
use tonic::Status;

use crate::common::{Calls, Client, Events, Lab, creation, in_time, reaches, start, until};

/// A small file system in memory.
struct Disk(TempDir);

impl Disk {
    /// `None`: it cannot be had here, which is reported.
    fn mount(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(folder.path());
        match mount.output() {
            Ok(done) if done.status.success() => Some(Self(folder)),
            _ => {
                castnet_wrap_up::skip(test, "needs root, to mount a small tmpfs");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let mut block = vec![0; 1 << 16];
        let mut file = std::fs::File::create(self.path().join("fill")).unwrap();
        while !block.is_empty() {
            if std::io::Write::write_all(&mut file, &block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    fn free(&self) {
        let fill = self.path().join("fill");
        // A process that another test has begun to start may still have it open: removed alone, it would keep its space.
        std::fs::File::create(&fill).unwrap();
        std::fs::remove_file(fill).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Creates groups of this name with a number; returns the first refusal, and their number until then.
async fn create_until_refused(client: &mut Client, name: &str) -> (usize, Status) {
    for number in 0.. {
        let request = creation(&format!("{name}{number}"), &["h0", "h2"]);
        if let Err(status) = client.create_group(request).await {
            return (number, status);
        }
    }
    unreachable!()
}

async fn names(client: &Client) -> BTreeSet<String> {
    let groups = client.groups().await.into_iter();
    groups.map(|group| group.state.unwrap().name).collect()
}

async fn store_failure(client: &Client) -> String {
    client.topology().await.store_failure
}

/// Waits until the store works.
async fn works(client: &Client) {
    let works = async { while !store_failure(client).await.is_empty() {} };
    in_time(works).await;
}

/// Groups keep their rules and are shown, changes are refused with the reason, and all goes on when there is space.
#[tokio::test]
async fn a_full_disk_is_outlived() {
    let Some(disk) = Disk::mount("full_disk::a_full_disk_is_outlived") else {
        return;
    };
    let mut lab = Lab::two_tiers().await;
    lab.config.store = Some(disk.path().join("controller.redb"));
    // A first start on it leaves nothing that a later one could not use.
    disk.fill();
    let refused = Controller::start(lab.config.clone()).await.unwrap_err();
    let says = "free space on its file system";
    assert!(refused.to_string().contains(says), "{refused}");
    let left = std::fs::read_dir(disk.path()).unwrap().count();
    assert_eq!(left, 1, "nothing but what fills it");
    disk.free();
    let (controller, mut client) = start(lab.config.clone()).await;
    client.create(lab.given("lasting", &["h0", "h2"], 17)).await;
    reaches(&client, "lasting", v1::GroupPhase::Active).await;
    let mut expected = BTreeSet::from(["lasting".to_owned()]);
    for outage in 0..3 {
        let name = format!("g{outage}-");
        disk.fill();
        let (created, status) = create_until_refused(&mut client, &name).await;
        expected.extend((0..created).map(|number| format!("{name}{number}")));
        let full = format!(
            "store {}: I/O error: No space left on device (os error 28): free space on its file system",
            disk.path().join("controller.redb").display()
        );
        let says = format!("not stored, so nothing was changed: {full}");
        assert_eq!(status.message(), says);
        assert_eq!(store_failure(&client).await, full);
        assert_eq!(names(&client).await, expected);
        // A switch that is restarted gets its rules again; that another is lost cannot be stored.
        let mut events = Events::of(&client).await;
        lab.switches.get_mut("leaf0").unwrap().restart().await;
        lab.switches.get_mut("spine0").unwrap().stop().await;
        events.switch("leaf0", true).await;
        let has_it = || lab.switch("leaf0").groups() == ["lasting.1"];
        until("leaf0 has its group again", has_it).await;
        events.switch("spine0", false).await;
        disk.free();
        reaches(&client, "lasting", v1::GroupPhase::Degraded).await;
        works(&client).await;
        lab.switches.get_mut("spine0").unwrap().start().await;
        reaches(&client, "lasting", v1::GroupPhase::Active).await;
        let request = creation(&format!("{name}{created}"), &["h0", "h2"]);
        client.create(request).await;
        expected.insert(format!("{name}{created}"));
        assert_eq!(names(&client).await, expected);
    }
    controller.stop().await;
    let (controller, client) = start(lab.config.clone()).await;
    assert_eq!(names(&client).await, expected);
    controller.stop().await;

    // A controller starts though the disk is full: all is read and shown.
    disk.fill();
    let (controller, mut client) = start(lab.config.clone()).await;
    assert_eq!(names(&client).await, expected);
    create_until_refused(&mut client, "h").await;
    disk.free();
    works(&client).await;
    controller.stop().await;
}
