//! Replays the committed corpus of every target.

use castnet_fuzz::TARGETS;

#[test]
fn every_file_of_every_corpus_passes() {
    for target in TARGETS {
        let files = target.corpus();
        assert!(!files.is_empty(), "{}: an empty corpus", target.name);
        for (name, input) in files {
            // The test prints this name if the target panics.
            println!("{}/{name}", target.name);
            (target.run)(&input);
        }
    }
}

#[test]
fn every_target_accepts_an_empty_input() {
    for target in TARGETS {
        (target.run)(&[]);
    }
}
