//! Replays the committed corpus of every target.

use castnet_fuzz::TARGETS;
use std::fs;
use std::path::Path;

#[test]
fn every_file_of_every_corpus_passes() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry of the folder").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{name}: an empty corpus");
        for file in &files {
            let data = fs::read(file).expect("a file of the corpus");
            // Its name comes out where it panics.
            println!(
                "{name}/{}",
                file.file_name().unwrap_or_default().to_string_lossy()
            );
            target(&data);
        }
    }
}

#[test]
fn every_target_takes_no_bytes_at_all() {
    for (_, target) in TARGETS {
        target(&[]);
    }
}
