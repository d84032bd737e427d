use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use castnet_console::exit::{self, Failure, Outcome, first_failure};
use castnet_console::output::{Done, Output, Page, Report, write_stdout};
use castnet_console::settings;
use castnet_controller::Config;
use castnet_controller::store::content::{self, Entries, EntryFault, ImportError};
use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig, EtcdStore};
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::{self, RedbStore};
use castnet_controller::store::{Batch, STORE_VERSION, Store, StoreError, Table, Write};
use clap::{Args, Subcommand, value_parser};
use serde::Serialize;

/// Checks, exports and imports the store of a controller that does not run
#[derive(Debug, Args)]
#[command(
    after_help = "A store is the file of castnet controller --store. A store in etcd is named by the configuration of its controllers, none of which may run. The document of an export is JSON; docs/store.md describes it. Two exports of equal stores are equal.

Examples:
  castnet store check /var/lib/castnet/controller.redb
  castnet store export /var/lib/castnet/controller.redb > backup.json
  castnet store import new.redb backup.json
  castnet store export /etc/castnet/controller.toml > backup.json        of the store that the file names, such as etcd
  castnet store import /var/lib/castnet/controller.redb backup.json --force"
)]
pub(crate) struct StoreCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Reads every entry, and reports all faults and contradictions; changes nothing
    Check {
        /// File of the store, or the configuration of a controller that names it: a path that ends in .toml
        store: PathBuf,
    },
    /// Prints the content of a store as a document, and names the entries that it leaves out as they do not read; changes nothing
    Export {
        /// File of the store, or the configuration of a controller that names it: a path that ends in .toml
        store: PathBuf,
    },
    /// Writes the content of a document into a store, all of it or nothing
    Import {
        /// File of the store, created if it is not there; or the configuration of a controller that names it: a path that ends in .toml
        store: PathBuf,
        /// The document; - reads it from stdin
        document: PathBuf,
        /// Replaces what the store has
        #[arg(long)]
        force: bool,
        /// The epoch that switches name when they say that the one of this controller is over: a clock was ahead at an earlier import
        #[arg(long, value_name = "EPOCH", value_parser = value_parser!(u64).range(..1 << 62))]
        above: Option<u64>,
    },
}

#[derive(Debug, Serialize)]
struct Checked {
    store: String,
    schema: u64,
    groups: usize,
    hosts: usize,
    faults: Vec<EntryFault>,
}

impl Report for Checked {
    fn page(&self, page: &mut Page) {
        let Self {
            store, groups, hosts, ..
        } = self;
        match self.faults.len() {
            0 => page.line(format!("{store} is sound: {}", counts(*groups, *hosts))),
            faults => page.line(format!(
                "{store} has {faults} fault(s) in {}",
                counts(*groups, *hosts)
            )),
        }
        for fault in &self.faults {
            page.line(format!("  {fault}"));
        }
    }
}

#[derive(Debug, Serialize)]
struct Imported {
    store: String,
    groups: usize,
    hosts: usize,
}

fn counts(groups: usize, hosts: usize) -> String {
    format!("{groups} group(s), {hosts} host(s)")
}

fn imported_sentence(store: &str, groups: usize, hosts: usize, document: &Path) -> String {
    format!(
        "{store} has {} of {}. Groups that were created since this export run on at the switches, and a controller on it leaves them alone: \
         castnet group purge shows and removes them",
        counts(groups, hosts),
        document.display()
    )
}

fn count(entries: &Entries, table: Table) -> usize {
    entries.keys().filter(|key| key.table == table).count()
}

/// An error that names the file; the next step depends on what is wrong.
fn failed(error: StoreError) -> Failure {
    let failure = Failure::failed(&error);
    match error {
        StoreError::Failed { .. } => failure.next(
            "see that the path is right, that this user may read and write it, and that no controller has it open",
        ),
        StoreError::Layout { .. } => failure.next("use the Castnet that has written it, or a newer one"),
        _ => failure,
    }
}

/// Where a store is.
enum Place {
    File(PathBuf),
    Etcd(EtcdConfig),
}

impl Place {
    /// A file, or what a controller's configuration names.
    fn of(path: &Path) -> Outcome<Self> {
        if path.extension().is_none_or(|extension| extension != "toml") {
            return Ok(Self::File(path.into()));
        }
        let text = exit::read_text(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let config = Config::from_toml(&text, folder).map_err(|faults| settings::faulty(path, faults))?;
        match (config.etcd, config.store) {
            (Some(etcd), _) => Ok(Self::Etcd(etcd)),
            (None, Some(file)) => Ok(Self::File(file)),
            (None, None) => Err(Failure::usage(format!("{}: it names no store", path.display()))),
        }
    }

    async fn read(&self) -> Outcome<Entries> {
        match self {
            Self::File(path) => {
                // redb panics at some damages, which are errors here.
                let hook = std::panic::take_hook();
                std::panic::set_hook(Box::new(|_| {}));
                let entries = redb::content(path).map_err(failed);
                std::panic::set_hook(hook);
                entries
            }
            Self::Etcd(config) => {
                let store = lead(config).await?;
                let entries = store.load().await.map_err(failed);
                store.close().await.map_err(failed)?;
                entries.and_then(|entries| there(entries, config))
            }
        }
    }

    /// Whether it is a file that has something.
    fn is_there(&self) -> bool {
        match self {
            Self::File(path) => path.exists(),
            Self::Etcd(_) => false,
        }
    }

    /// Opens it for writing; a file is created.
    async fn open(&self) -> Outcome<Box<dyn Store>> {
        match self {
            Self::File(path) => Ok(Box::new(RedbStore::open(path).map_err(failed)?)),
            Self::Etcd(config) => Ok(Box::new(lead(config).await?)),
        }
    }
}

/// A controller has entries in its store from its first start on.
fn there(entries: Entries, config: &EtcdConfig) -> Outcome<Entries> {
    match entries.is_empty() {
        true => {
            let what = format!("etcd has no store with the prefix {:?}", config.prefix);
            Err(Failure::failed(what)
                .next("give the prefix that its controllers have, in the table of the store"))
        }
        false => Ok(entries),
    }
}

/// Takes the lead, so that no controller uses the store meanwhile.
async fn lead(config: &EtcdConfig) -> Outcome<EtcdStore> {
    match Candidate::new(config, "castnet store")
        .campaign()
        .await
        .map_err(failed)?
    {
        Campaign::Won(store) => Ok(store),
        Campaign::Lost(leader) => Err(Failure::refused(format!(
            "the controller at {leader} uses this store"
        ))
        .next("stop all controllers of the store first; their groups run on")),
    }
}

/// What writes these entries into an empty store.
fn batch(entries: Entries) -> Batch {
    let write = |(key, entry)| {
        let write = Write {
            was: 0,
            entry: Some(entry),
        };
        (key, write)
    };
    entries.into_iter().map(write).collect()
}

fn document(path: &Path) -> Outcome<String> {
    if path != Path::new("-") {
        return exit::read_text(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

impl StoreCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        match self.verb {
            Verb::Check { store } => {
                let entries = Place::of(&store)?.read().await?;
                let faults = content::check(&entries);
                let found = faults.len();
                let report = Checked {
                    store: store.display().to_string(),
                    schema: STORE_VERSION,
                    groups: count(&entries, Table::Groups),
                    hosts: count(&entries, Table::Hosts),
                    faults,
                };
                let verdict = match found {
                    0 => Ok(()),
                    _ => Err(Failure::failed(format!("{found} fault(s)"))
                        .next("castnet store export STORE, correct the document, castnet store import STORE DOCUMENT --force: what \
                               an export leaves out is lost then")),
                };
                output.conclude(&report, verdict)
            }
            Verb::Export { store } => {
                let (text, faults) = content::export(&Place::of(&store)?.read().await?);
                let shown = write_stdout(&text);
                if faults.is_empty() {
                    return shown;
                }
                let lines: Vec<String> = faults.iter().map(|fault| format!("left out: {fault}")).collect();
                first_failure([Err(Failure::failed(lines.join("\n"))), shown])
            }
            Verb::Import {
                store,
                document: from,
                force,
                above,
            } => {
                let text = document(&from)?;
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |now| now.as_secs());
                let now = above.map_or(now, |epoch| now.max(epoch + 1));
                let place = Place::of(&store)?;
                // A document with faults creates no file: it is tried in memory first.
                let memory = MemoryStore::default();
                if !force && place.is_there() {
                    memory.commit(batch(place.read().await?)).await.map_err(failed)?;
                }
                content::import(&memory, &text, force, now)
                    .await
                    .map_err(|e| refused(e, &from, &store))?;
                let opened = place.open().await?;
                let imported = content::import(&*opened, &text, force, now).await;
                opened.close().await.map_err(failed)?;
                let imported = imported.map_err(|e| refused(e, &from, &store))?;
                let (groups, hosts) = (count(&imported, Table::Groups), count(&imported, Table::Hosts));
                let store = store.display().to_string();
                output.show(&Done {
                    sentence: imported_sentence(&store, groups, hosts, &from),
                    facts: Imported { store, groups, hosts },
                })
            }
        }
    }
}

fn refused(error: ImportError, document: &Path, store: &Path) -> Failure {
    let text = match &error {
        ImportError::Faults(faults) => {
            let lines: Vec<String> = faults
                .iter()
                .map(|fault| format!("{}: {fault}", document.display()))
                .collect();
            lines.join("\n")
        }
        ImportError::NotEmpty { .. } => format!("{}: {error}", store.display()),
        ImportError::Document(_) | ImportError::Schema { .. } => format!("{}: {error}", document.display()),
        ImportError::Store(_) => error.to_string(),
    };
    match error {
        ImportError::Store(error) => failed(error),
        ImportError::NotEmpty { .. } => {
            Failure::refused(text).next("--force replaces them; castnet store export keeps them first")
        }
        ImportError::Schema { .. } => {
            Failure::usage(text).next("docs/store.md says which version reads which schema")
        }
        _ => Failure::usage(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_says_what_becomes_of_groups_that_it_does_not_have() {
        let sentence = imported_sentence("new.redb", 2, 1, Path::new("backup.json"));
        for part in [
            "new.redb has 2 group(s), 1 host(s) of backup.json",
            "created since this export run on",
            "castnet group purge",
        ] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    /// A nightly export with a mistyped prefix made empty backups.
    #[test]
    fn a_store_in_etcd_that_no_controller_has_used_is_none() {
        let text = "store = { etcd = [\"http://127.0.0.1:1\"], prefix = \"typo\" }";
        let config = Config::from_toml(text, Path::new("/etc")).expect("a configuration");
        let config = config.etcd.expect("etcd");
        let refused = there(Entries::new(), &config).expect_err("nothing is there");
        assert_eq!(refused.what, "etcd has no store with the prefix \"typo\"");
    }
}
