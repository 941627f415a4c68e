//! What is fed with any bytes, and what must hold whatever they are.
//!
//! In: bytes, from a fuzzer (`tests/fuzz/run`) or from the corpus (`tests/fuzz/corpus`, replayed by the tests below). Out:
//! nothing, or a panic that names the broken promise. Not part of the agent: compiled for tests and for fuzzing only.
//!
//! Joining: a function here with a line in [`TARGETS`] and seeds, and a `[[bin]]` of the same name in `tests/fuzz/Cargo.toml`.

#![expect(clippy::unwrap_used, reason = "a broken promise is told by a panic")]

mod consul;
mod dns;
mod manifest;
mod node;
mod request;
mod state;
mod supervisor;
mod text;

use std::path::Path;

/// One thing that is fed.
pub struct Target {
    /// Its name, that of its corpus and of its program.
    pub name: &'static str,
    /// Takes the bytes and asserts what must hold.
    pub feed: fn(&[u8]),
    /// Whole examples to begin with, made by the present code: a corpus of files grows old when a format changes.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Everything that is fed.
pub const TARGETS: [Target; 11] = [
    Target { name: "agent", feed: node::feed_agent, seeds: node::agent_seeds },
    Target { name: "bolt", feed: node::feed_bolt, seeds: node::bolt_seeds },
    Target { name: "consul", feed: consul::feed, seeds: consul::seeds },
    Target { name: "dns", feed: dns::feed, seeds: dns::seeds },
    Target { name: "hcl", feed: manifest::feed_hcl, seeds: manifest::hcl_seeds },
    Target { name: "manifest", feed: manifest::feed, seeds: manifest::seeds },
    Target { name: "request", feed: request::feed, seeds: request::seeds },
    Target { name: "srv", feed: node::feed_srv, seeds: node::srv_seeds },
    Target { name: "state", feed: state::feed, seeds: state::seeds },
    Target { name: "supervisor", feed: supervisor::feed, seeds: supervisor::seeds },
    Target { name: "text", feed: text::feed, seeds: text::seeds },
];

/// Feeds `data` to the target of that name.
///
/// # Panics
/// When something does not hold, or there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no fuzz target {name}")).feed)(data);
}

/// Writes the seeds of a target as files into `dir`.
///
/// # Panics
/// When there is no such target or a file can't be written.
pub fn write_seeds(name: &str, dir: &Path) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("there is no fuzz target {name}"));
    std::fs::create_dir_all(dir).unwrap();
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number:03}")), seed).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Instant};

    use herdlet_rpc::pool::Chance;

    use super::*;

    /// What takes longer hangs. A quiet machine needs milliseconds for the slowest of these.
    const HANG: std::time::Duration = std::time::Duration::from_secs(180);

    fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
        let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../tests/fuzz/corpus", name].iter().collect();
        let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
    }

    fn replay(name: &str) {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        let seeds = (target.seeds)().into_iter().map(|seed| ("a seed".to_owned(), seed));
        let files = corpus(name);
        let known = files.len();
        for (file, data) in seeds.chain(files) {
            let begun = Instant::now();
            let fed = std::panic::catch_unwind(|| (target.feed)(&data));
            assert!(fed.is_ok(), "{file} breaks a promise (above)");
            assert!(begun.elapsed() < HANG, "{file} takes {:?}", begun.elapsed());
        }
        assert!(known >= 10, "the corpus of {name} has {known} files");
    }

    #[test]
    fn the_corpus_of_manifests_holds() {
        replay("manifest");
    }

    #[test]
    fn the_corpus_of_dns_queries_holds() {
        replay("dns");
    }

    #[test]
    fn the_corpus_of_consuls_answers_holds() {
        replay("consul");
    }

    #[test]
    fn the_corpus_of_hcl_holds() {
        replay("hcl");
    }

    #[test]
    fn the_corpus_of_requests_holds() {
        replay("request");
    }

    #[test]
    fn the_corpus_of_state_records_holds() {
        replay("state");
    }

    #[test]
    fn the_corpus_of_supervisor_records_holds() {
        replay("supervisor");
    }

    #[test]
    fn the_corpus_of_texts_holds() {
        replay("text");
    }

    #[test]
    fn the_corpus_of_agent_files_holds() {
        replay("agent");
    }

    #[test]
    fn the_corpus_of_databases_of_nomads_client_holds() {
        replay("bolt");
    }

    #[test]
    fn the_corpus_of_srv_answers_holds() {
        replay("srv");
    }

    /// Bytes of the corpus that are wrong, missing, doubled; as often as `HERDLET_TEST_MUTATIONS` says, and seldom without.
    #[test]
    fn what_a_node_reads_and_is_damaged_by_chance_holds() {
        let times = std::env::var("HERDLET_TEST_MUTATIONS").ok().and_then(|times| times.parse().ok());
        let mut chance = Chance::of(11);
        for name in ["agent", "bolt", "srv"] {
            let target = TARGETS.iter().find(|target| target.name == name).unwrap();
            let mut files: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, data)| data).collect();
            files.extend((target.seeds)());
            for time in 0..times.unwrap_or(500) {
                let data = damaged(&files, &mut chance);
                let begun = Instant::now();
                let fed = std::panic::catch_unwind(|| (target.feed)(&data));
                assert!(
                    fed.is_ok(),
                    "{name}, damaged {time} times, breaks a promise: {}",
                    data.escape_ascii()
                );
                assert!(
                    begun.elapsed() < HANG,
                    "{name} takes {:?}: {}",
                    begun.elapsed(),
                    data.escape_ascii()
                );
            }
        }
    }

    fn damaged(files: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
        let mut below = |max: usize| {
            let drawn = chance.below(std::time::Duration::from_nanos(max as u64));
            usize::try_from(drawn.as_nanos()).unwrap()
        };
        let mut data = files[below(files.len())].clone();
        for _ in 0..=below(4) {
            let at = below(data.len().max(1));
            match below(5) {
                0 => data.truncate(at),
                1 => data.extend_from_within(at.min(data.len())..),
                2 if at < data.len() => {
                    data[at] = [0, 1, 2, 0x7f, 0x80, 0xc0, 0xff, b'{', b'"', b'$'][below(10)]
                }
                3 if at < data.len() => data[at] ^= 1 << below(8),
                4 if at < data.len() => drop(data.drain(at..(at + 1 + below(8)).min(data.len()))),
                _ => {}
            }
        }
        data
    }

    #[test]
    fn every_target_is_a_program_and_is_replayed() {
        let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../tests/fuzz"].iter().collect();
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let page = include_str!("fuzz.rs");
        for Target { name, .. } in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is no program of tests/fuzz");
            assert!(page.contains(&format!("replay(\"{name}\")")), "{name} is not replayed");
        }
    }
}
