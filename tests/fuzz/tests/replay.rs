//! Replays the committed corpus of every target.

use castnet_fuzz::TARGETS;

#[test]
fn every_file_of_every_corpus_passes() {
    for target in TARGETS {
        let files = target.corpus();
        assert!(!files.is_empty(), "{}: an empty corpus", target.name);
        for (name, input) in files {
            // Its name comes out where it panics.
            println!("{}/{name}", target.name);
            (target.run)(&input);
        }
    }
}

#[test]
fn every_target_takes_no_bytes_at_all() {
    for target in TARGETS {
        (target.run)(&[]);
    }
}
