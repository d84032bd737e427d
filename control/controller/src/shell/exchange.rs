//! The exchange of blobs between the ranks of a job: an all-gather through the controller.
//!
//! A blob goes to each rank, so it counts as often as there are ranks, from its call until the answer to that call is sent: a client that does
//! not read its answers uses up its own room.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use castnet_proto::access::{Caller, Role};
use castnet_proto::convert::ExchangeCall;
use castnet_proto::v1::{self, ExchangeAmong};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use crate::error::{Refusal, list_text};
use crate::state::Record;
use crate::state::access::check_size;
use crate::state::kinds::collective::secret::Secret;

/// Maximum bytes of all blobs, each counted once.
const BYTES_MAX: usize = 256 << 20;
/// Maximum bytes that the blobs of a host take in answers, which must not keep others out.
const BYTES_OF_HOST_MAX: usize = 128 << 20;
/// What a call takes beside its blob.
const CALL_BYTES: usize = 1024;
/// Name of the job or the group, between whom it is, and number of the round.
type Key = (String, ExchangeAmong, u64);
type Done = watch::Receiver<Option<Arc<Complete>>>;

/// A complete round, in the order of the ranks.
#[derive(Debug)]
struct Complete {
    blobs: Vec<Vec<u8>>,
    /// The calls that gave them.
    calls: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    rounds: BTreeMap<Key, Round>,
    bytes: usize,
    /// In answers, of each host that has some, by its identity.
    by_host: BTreeMap<String, usize>,
    calls: u64,
}

#[derive(Debug)]
struct Round {
    size: u16,
    /// As the first rank gave it.
    secret: Secret,
    /// By rank.
    blobs: BTreeMap<u16, Blob>,
    done: watch::Sender<Option<Arc<Complete>>>,
}

#[derive(Debug)]
struct Blob {
    /// Number of the call that gave it.
    call: u64,
    caller: Arc<Caller>,
    bytes: Vec<u8>,
}

/// What a call takes: the bytes of its blob, and those in the answers to all ranks.
#[derive(Clone, Copy, Debug)]
struct Weight {
    bytes: usize,
    in_answers: usize,
}

impl Round {
    /// Whether it has these seats, and each blob is of a host that may have its seat; an empty name: any host.
    fn is_of(&self, seats: &[&str]) -> bool {
        let may_be = |(rank, blob): (&u16, &Blob)| {
            let seat = seats.get(usize::from(*rank));
            seat.is_some_and(|host| host.is_empty() || blob.caller.may_be(host))
        };
        usize::from(self.size) == seats.len() && self.blobs.iter().all(may_be)
    }
}

impl Open {
    /// Counts a blob. Refuses it if there is no room.
    fn add(&mut self, caller: &Caller, more: Weight) -> Result<(), Refusal> {
        if self.bytes + more.bytes > BYTES_MAX {
            return Err(Refusal::ExchangesFull { bytes: self.bytes });
        }
        if caller.role == Role::Host {
            let of_host = self.by_host.get(caller.identity()).copied().unwrap_or_default();
            if of_host + more.in_answers > BYTES_OF_HOST_MAX {
                return Err(Refusal::ExchangesFull { bytes: of_host });
            }
            self.by_host
                .insert(caller.identity().into(), of_host + more.in_answers);
        }
        self.bytes += more.bytes;
        Ok(())
    }

    /// Refuses another secret than these rounds have.
    fn check_secret(
        &self,
        job: (&str, ExchangeAmong),
        rounds: RangeInclusive<u64>,
        rank: u16,
        given: &Secret,
    ) -> Result<(), Refusal> {
        let key = |round: &u64| (job.0.to_owned(), job.1, *round);
        // All have the same one.
        let open = self.rounds.range(key(rounds.start())..=key(rounds.end())).next();
        match open.is_none_or(|(_, round)| round.secret.same(given)) {
            true => Ok(()),
            false => Err(Refusal::OtherSecret {
                job: job.0.into(),
                rank,
            }),
        }
    }

    fn end(&mut self, caller: &Caller, weight: Weight) {
        self.bytes -= weight.bytes;
        if let Some(bytes) = self
            .by_host
            .get_mut(caller.identity())
            .filter(|_| caller.role == Role::Host)
        {
            *bytes -= weight.in_answers;
            if *bytes == 0 {
                self.by_host.remove(caller.identity());
            }
        }
    }
}

/// A rank's part in a round, until it is answered: taken back if dropped before the round is complete.
#[derive(Debug)]
pub(crate) struct Part {
    exchanges: Exchanges,
    key: Key,
    rank: u16,
    call: u64,
    caller: Arc<Caller>,
    weight: Weight,
}

impl Exchanges {
    /// Takes the blob of a rank. The answer is there when all ranks have given theirs.
    pub(crate) fn exchange(
        &self,
        call: ExchangeCall,
        caller: Arc<Caller>,
    ) -> Result<impl Future<Output = Result<(v1::ExchangeResponse, Part), Refusal>> + Send + use<>, Refusal>
    {
        let deadline = Instant::now() + call.timeout;
        let (waited, key) = (call.timeout, (call.job.clone(), call.among, call.round));
        let (part, mut done) = self.put(call, caller)?;
        let exchanges = self.clone();
        Ok(async move {
            let complete = match timeout_at(deadline, done.wait_for(Option::is_some)).await {
                Ok(Ok(complete)) => complete.clone(),
                // The sender is dropped with the complete round, with its last part, which is this one, or with a stranger's part.
                Ok(Err(_)) => None,
                Err(_) => {
                    let missing = list_text(&exchanges.missing(&key));
                    drop(part);
                    let (job, _, round) = key;
                    let reason =
                        format!("round {round} of job {job:?} is without rank {missing} after {waited:?}");
                    return Err(Refusal::of(Code::DeadlineExceeded, "round", reason));
                }
            };
            let Some(complete) = complete else {
                // Its ranks have changed, or the controller stops.
                let job = &part.key.0;
                let reason =
                    format!("the round of job {job:?} has ended before all its ranks had called: call again");
                return Err(Refusal::later("round", reason));
            };
            // Each blob goes to each rank once: that is what is counted.
            if complete.calls.get(usize::from(part.rank)) != Some(&part.call) {
                let (job, rank) = (part.key.0.clone(), part.rank);
                return Err(Refusal::CalledAgain { job, rank });
            }
            let blobs = complete.blobs.clone();
            Ok((v1::ExchangeResponse { blobs }, part))
        })
    }

    fn put(&self, call: ExchangeCall, caller: Arc<Caller>) -> Result<(Part, Done), Refusal> {
        let open = &mut *self.0.lock();
        let key = (call.job, call.among, call.round);
        if let Some(round) = open.rounds.get(&key) {
            check_size(&key.0, round.size.into(), call.size)?;
        }
        let secret = Secret::new(&key.0, &call.secret);
        let together = match call.among {
            ExchangeAmong::Unspecified => 0..=u64::MAX,
            ExchangeAmong::Members | ExchangeAmong::Outside => call.round..=call.round,
        };
        open.check_secret((&key.0, call.among), together, call.rank, &secret)?;
        let first = open.rounds.get(&key).and_then(|r| r.blobs.get(&call.rank));
        if let Some(first) = first
            && caller.role != Role::Operator
            && caller.peer.names != first.caller.peer.names
        {
            let what = format!("exchange as rank {} of job {:?}", call.rank, key.0);
            return Err(caller.denied(what, "another host has called as this rank").into());
        }
        let bytes = call.blob.len() + CALL_BYTES;
        let weight = Weight {
            bytes,
            in_answers: bytes * usize::from(call.size),
        };
        open.add(&caller, weight)?;
        open.calls += 1;
        let number = open.calls;
        let round = open.rounds.entry(key.clone()).or_insert_with(|| Round {
            size: call.size,
            secret,
            blobs: BTreeMap::new(),
            done: watch::Sender::new(None),
        });
        let done = round.done.subscribe();
        let blob = Blob {
            call: number,
            caller: caller.clone(),
            bytes: call.blob,
        };
        // A rank that calls again has lost its first call: the newer blob counts.
        round.blobs.insert(call.rank, blob);
        let is_complete = round.blobs.len() == usize::from(round.size);
        if is_complete && let Some(complete) = open.rounds.remove(&key) {
            let given = complete.blobs.into_values().map(|blob| (blob.bytes, blob.call));
            let (blobs, calls) = given.unzip();
            complete
                .done
                .send_replace(Some(Arc::new(Complete { blobs, calls })));
        }
        let part = Part {
            exchanges: self.clone(),
            key,
            rank: call.rank,
            call: number,
            caller,
            weight,
        };
        Ok((part, done))
    }

    /// Refuses a rank of a job without a group that gives another secret than those whose rounds are open: the group that it would create ends
    /// these rounds.
    pub(crate) fn check_secret(&self, job: &str, rank: u16, given: &Secret) -> Result<(), Refusal> {
        self.0
            .lock()
            .check_secret((job, ExchangeAmong::Unspecified), 0..=u64::MAX, rank, given)
    }

    /// Ends the rounds of a group that do not fit it any more: with another secret or number of ranks, or with a blob of a host whose seat is
    /// another host's now. Before a job has a group, each rank is free for the first caller. The calls of all hosts in such a round fail, and
    /// may be repeated. `None`: the group is forgotten, and with it the seats of its members.
    pub(crate) fn forget_strangers(&self, name: &str, record: Option<&Record>) {
        let open = &mut *self.0.lock();
        let secret = record.and_then(Record::secret_of_ranks);
        // Most groups have no rounds.
        let seats = |among| LazyCell::new(move || record?.seats(among, 0));
        let (ranks, members) = (seats(ExchangeAmong::Unspecified), seats(ExchangeAmong::Members));
        let fits = |number: u64, among, round: &Round| match among {
            ExchangeAmong::Unspecified => ranks.as_ref().is_none_or(|ranks| {
                round.is_of(ranks) && secret.is_none_or(|secret| round.secret.same(secret))
            }),
            ExchangeAmong::Members => members.as_ref().is_some_and(|members| round.is_of(members)),
            ExchangeAmong::Outside => {
                let ends = record.and_then(|record| record.seats(among, number));
                ends.is_some_and(|ends| round.is_of(&ends))
            }
        };
        let key = |among, number| (name.to_owned(), among, number);
        let (first, last) = (ExchangeAmong::Unspecified, ExchangeAmong::Outside);
        let all = open.rounds.range(key(first, 0)..=key(last, u64::MAX));
        let wrong: Vec<Key> = all
            .filter(|((_, among, number), round)| !fits(*number, *among, round))
            .map(|(key, _)| key.clone())
            .collect();
        for key in wrong {
            open.rounds.remove(&key);
        }
    }

    fn missing(&self, key: &Key) -> Vec<u16> {
        let open = self.0.lock();
        let round = open.rounds.get(key);
        round.map_or_else(Vec::new, |r| {
            (0..r.size).filter(|rank| !r.blobs.contains_key(rank)).collect()
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let open = &mut *self.exchanges.0.lock();
        open.end(&self.caller, self.weight);
        let Some(round) = open.rounds.get_mut(&self.key) else {
            return;
        };
        if round.blobs.get(&self.rank).is_some_and(|b| b.call == self.call) {
            round.blobs.remove(&self.rank);
            if round.blobs.is_empty() {
                open.rounds.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use castnet_group::CollectiveSettings;
    use castnet_proto::transport::Peer;
    use castnet_wire::Psn;

    use super::*;
    use crate::shell::shared::tests::shared;
    use crate::shell::write;
    use crate::state::core::tests::{core, join, mcst_id, new_group};
    use crate::state::kinds::multicast::outside::Outside as OutsideReceiver;
    use crate::state::kinds::multicast::record::Diverted;
    use crate::state::{Collective, Kind, Multicast};
    use crate::store::StoreError;

    fn caller(name: Option<&str>) -> Arc<Caller> {
        let peer = Arc::new(Peer {
            address: String::new(),
            names: name.map(|name| vec![name.into()]),
        });
        Arc::new(Caller::new(peer, name.map_or(Role::Operator, |_| Role::Host)))
    }

    fn call(rank: u16, size: u16, round: u64, blob: &[u8]) -> ExchangeCall {
        ExchangeCall {
            job: "job".into(),
            among: ExchangeAmong::Unspecified,
            rank,
            size,
            round,
            blob: blob.into(),
            timeout: Duration::from_secs(60),
            secret: Vec::new(),
        }
    }

    fn record(kind: Kind) -> Record {
        Record::new("job".into(), (mcst_id(1), Vec::new()), kind)
    }

    /// A multicast group of these hosts. The first one sends.
    fn members(hosts: &[&str]) -> Multicast {
        Multicast::new(new_group("job", hosts), Psn::new(0), 100)
    }

    fn with(secret: &str, call: ExchangeCall) -> ExchangeCall {
        ExchangeCall {
            secret: secret.into(),
            ..call
        }
    }

    /// A stranger created the group of a job that had begun to exchange, and ended its rounds.
    #[tokio::test]
    async fn a_stranger_without_the_secret_ends_no_round() {
        let shared = shared();
        let (mut parts, exchanges) = (Vec::new(), &shared.exchanges);
        for (rank, host) in [(0, "h0"), (1, "h1")] {
            let put = exchanges.put(with("s", call(rank, 3, 0, b"blob")), caller(Some(host)));
            parts.push(put.unwrap());
        }
        for (round, secret) in [(0, "x"), (1, "x"), (1, "")] {
            let other = exchanges.put(with(secret, call(2, 3, round, b"")), caller(Some("h9")));
            assert!(
                matches!(other, Err(Refusal::OtherSecret { rank: 2, .. })),
                "{round}"
            );
        }
        for secret in ["x", ""] {
            let joined = shared.lock().init(join("job", 1, 2, secret), "h1");
            assert!(matches!(joined, Err(Refusal::OtherSecret { rank: 1, .. })));
        }
        assert_eq!(
            (exchanges.0.lock().rounds.len(), shared.lock().groups.names()),
            (1, vec![])
        );
        let joined = shared.lock().init(join("job", 0, 3, "s"), "h0");
        assert_eq!((joined.is_ok(), exchanges.0.lock().rounds.len()), (true, 1));
    }

    /// The group was there before its first rank, which sets the secret.
    #[tokio::test]
    async fn rounds_with_another_secret_end_when_the_ranks_have_one() {
        let exchanges = Exchanges::default();
        let put = exchanges.put(with("x", call(2, 3, 0, b"")), caller(Some("h9")));
        let part = put.unwrap();
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 3, "s"), "h0").map(drop).unwrap();
        exchanges.forget_strangers("job", Some(core.group("job").unwrap().record()));
        assert!(exchanges.0.lock().rounds.is_empty());
        drop(part);
    }

    /// Rounds of others had ended when a rank joined, also if that could not be stored and the rank was refused.
    #[tokio::test]
    async fn a_join_ends_the_rounds_of_others_when_it_is_on_disk() {
        let shared = shared();
        let exchanges = &shared.exchanges;
        let put = exchanges.put(call(0, 3, 0, b"blob"), caller(Some("h9")));
        let part = put.unwrap();
        for is_stored in [false, true] {
            let joined = shared.lock().init(join("job", 0, 3, ""), "h0");
            assert!(joined.is_ok());
            let batch = shared.lock().next_batch().unwrap();
            assert_eq!(exchanges.0.lock().rounds.len(), 1);
            match is_stored {
                true => write::ended(&shared, batch, Ok(())),
                false => {
                    let error = StoreError::Closed { store: "s".into() };
                    write::ended(&shared, batch, Err(Arc::new(error)));
                }
            }
            assert_eq!(exchanges.0.lock().rounds.is_empty(), is_stored);
        }
        drop(part);
    }

    #[tokio::test]
    async fn a_host_does_not_keep_others_out() {
        let exchanges = Exchanges::default();
        let blob = vec![0; (1 << 20) - CALL_BYTES];
        let mut parts = Vec::new();
        // It goes to 32 ranks.
        let put = |host, round| exchanges.put(call(0, 32, round, &blob), caller(host));
        for round in 0..4 {
            parts.push(put(Some("h9"), round).unwrap());
        }
        let refused = put(Some("h9"), 4).map(drop).unwrap_err();
        assert!(
            matches!(refused, Refusal::ExchangesFull { bytes } if bytes == 128 << 20),
            "{refused}"
        );
        // The newer blob of a call counts, and what has ended does not.
        let again = put(Some("h9"), 0);
        assert!(again.is_err(), "both count until the first has ended");
        parts.push(put(Some("h1"), 33).unwrap());
        drop(parts);
        parts = vec![put(Some("h9"), 0).unwrap()];
        drop(parts);
        let open = exchanges.0.lock();
        assert_eq!((open.bytes, open.by_host.len(), open.rounds.len()), (0, 0, 0));
    }

    /// The answer to a rank is counted once.
    #[tokio::test]
    async fn of_several_calls_of_a_rank_the_last_gets_the_answer() {
        let exchanges = Exchanges::default();
        let ask = |rank, blob: &[u8]| {
            exchanges
                .exchange(call(rank, 2, 0, blob), caller(Some("h9")))
                .unwrap()
        };
        let (old, new) = (ask(0, b"old"), ask(0, b"new"));
        let (answer, _part) = ask(1, b"b").await.unwrap();
        assert_eq!(answer.blobs, [b"new".to_vec(), b"b".to_vec()]);
        let refused = old.await.map(drop).unwrap_err();
        assert!(
            matches!(&refused, Refusal::CalledAgain { rank: 0, .. }),
            "{refused}"
        );
        assert_eq!(new.await.unwrap().0, answer);
    }

    /// A client that does not read its answers cannot fill the memory with them.
    #[tokio::test]
    async fn an_answer_counts_until_it_is_sent() {
        let exchanges = Exchanges::default();
        let blob = vec![0; (1 << 20) - CALL_BYTES];
        let put = |rank| {
            exchanges
                .put(call(rank, 2, 0, &blob), caller(Some("h9")))
                .unwrap()
        };
        let parts = [put(0), put(1)];
        let of_host = || exchanges.0.lock().by_host.get("h9").copied();
        assert!(exchanges.0.lock().rounds.is_empty(), "it is complete");
        assert_eq!(of_host(), Some(4 << 20));
        let [first, second] = parts;
        drop(first);
        assert_eq!(of_host(), Some(2 << 20));
        drop(second);
        let (_, part) = exchanges
            .exchange(call(0, 1, 1, b"xyz"), caller(Some("h9")))
            .unwrap()
            .await
            .unwrap();
        assert_eq!(of_host(), Some(3 + CALL_BYTES));
        drop(part);
        let open = exchanges.0.lock();
        assert_eq!((open.bytes, open.by_host.len(), open.rounds.len()), (0, 0, 0));
    }

    /// Who was first, before the job had a group, does not stay in the place of another.
    #[tokio::test]
    async fn a_blob_for_a_rank_that_is_anothers_now_is_taken_back() {
        let exchanges = Exchanges::default();
        let put = |rank, size, round, host| {
            exchanges
                .put(call(rank, size, round, b"blob"), caller(host))
                .unwrap()
                .0
        };
        let parts = [
            put(0, 3, 0, Some("h9")),
            put(2, 3, 0, Some("h9")),
            put(0, 3, 1, Some("h9")),
            put(0, 2, 2, Some("h0")),
            put(1, 3, 3, Some("h1")),
            put(2, 3, 3, Some("h9")),
        ];
        let hosts = ["h0", "h1", ""].map(String::from).to_vec();
        let group = Collective::new(hosts, CollectiveSettings::default(), false);
        exchanges.forget_strangers("job", Some(&record(Kind::Collective(group))));
        // A free rank may be h9's. Nothing is left of rounds with strangers and of another size.
        let left: Vec<u64> = exchanges.0.lock().rounds.keys().map(|key| key.2).collect();
        assert_eq!(left, [3]);
        drop(put(0, 3, 0, Some("h0")));
        drop(parts);
        let open = exchanges.0.lock();
        assert_eq!((open.bytes, open.by_host.len(), open.rounds.len()), (0, 0, 0));
    }

    /// A member that was put out kept the others from their fallback with its old call.
    #[tokio::test]
    async fn rounds_of_members_end_with_the_seats_of_those_who_called() {
        use ExchangeAmong::{Members, Outside, Unspecified};
        let exchanges = Exchanges::default();
        let parts = [
            (Unspecified, 0, 9, 0, Some("h9")),
            (Members, 0, 3, 0, Some("h0")),
            (Members, 2, 3, 0, Some("h2")),
            (Members, 3, 4, 1, Some("h3")),
            (Members, 1, 3, 2, Some("h1")),
            (Members, 2, 3, 2, Some("h9")),
            (Members, 2, 3, 3, None),
            (Members, 1, 2, 4, Some("h2")),
            (Outside, 0, 2, 7, Some("h2")),
            (Outside, 1, 2, 8, Some("h1")),
        ];
        let parts = parts.map(|(among, rank, size, round, host)| {
            let call = call(rank, size, round, b"blob");
            exchanges
                .put(ExchangeCall { among, ..call }, caller(host))
                .unwrap()
        });
        let left = |record: Option<Record>| {
            exchanges.forget_strangers("job", record.as_ref());
            let open = exchanges.0.lock();
            let keys = open.rounds.keys().map(|(_, among, round)| (*among, *round));
            keys.collect::<Vec<_>>()
        };
        let mut group = members(&["h0", "h1", "h2"]);
        group.outside = vec![OutsideReceiver {
            host: "h2".into(),
            reason: "cut off".into(),
            via: "h1".into(),
            number: 7,
        }];
        let of = |group: &Multicast| Some(record(Kind::Multicast(group.clone())));
        assert_eq!(
            left(of(&group)),
            [(Unspecified, 0), (Members, 0), (Members, 3), (Outside, 7)]
        );
        group.diverted = Some(Diverted {
            reason: "slow".into(),
            hosts: vec!["h0".into(), "h2".into()],
        });
        assert_eq!(left(of(&group)), [(Unspecified, 0), (Outside, 7)]);
        group.outside[0].host = "h3".into();
        assert_eq!(left(of(&group)), [(Unspecified, 0)]);
        drop(parts);
        assert_eq!(exchanges.0.lock().bytes, 0);
    }

    /// The stream of a group went to a stranger, who had been a member of an earlier one of its name.
    #[tokio::test]
    async fn rounds_of_members_end_with_their_group() {
        for next in [None, Some("h2")] {
            let shared = shared();
            let add = |last| {
                let kind = Kind::Multicast(members(&["h0", "h1", last]));
                shared.lock().add(record(kind)).unwrap();
            };
            let release = || {
                let batch = shared.lock().next_batch().unwrap();
                write::ended(&shared, batch, Ok(()));
                shared.exchanges.0.lock().rounds.len()
            };
            add("h9");
            let old = ExchangeCall {
                among: ExchangeAmong::Members,
                ..call(2, 3, 0, b"old")
            };
            let part = shared.exchanges.put(old, caller(Some("h9"))).unwrap();
            assert_eq!(release(), 1, "{next:?}");
            shared.lock().forget("job").unwrap();
            if let Some(last) = next {
                add(last);
            }
            assert_eq!(release(), 0, "{next:?}");
            drop(part);
        }
    }

    #[tokio::test]
    async fn a_time_out_names_the_missing_and_takes_the_blob_back() {
        let exchanges = Exchanges::default();
        let hurried = ExchangeCall {
            timeout: Duration::ZERO,
            ..call(1, 4, 0, b"x")
        };
        let error = exchanges
            .exchange(hurried, caller(None))
            .unwrap()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("rank 0, 2, 3"), "{error}");
        assert_eq!(exchanges.0.lock().bytes, 0);
        assert!(exchanges.0.lock().rounds.is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_goes_and_comes_again_counts_once_and_sizes_must_agree() {
        let exchanges = Exchanges::default();
        let (part, _) = exchanges.put(call(0, 2, 0, b"old"), caller(Some("h0"))).unwrap();
        let (again, _) = exchanges
            .put(call(0, 2, 0, b"newer"), caller(Some("h0")))
            .unwrap();
        let refused = exchanges.put(with("x", call(1, 2, 0, b"evil")), caller(None));
        assert!(matches!(refused, Err(Refusal::OtherSecret { rank: 1, .. })));
        let stranger = exchanges.put(call(0, 2, 0, b"evil"), caller(Some("h1")));
        assert!(matches!(stranger, Err(Refusal::Denied(_))));
        drop(part);
        assert_eq!(
            exchanges.0.lock().bytes,
            5 + CALL_BYTES,
            "the late end of the first call takes its own alone"
        );
        assert!(matches!(
            exchanges.put(call(1, 3, 0, b""), caller(None)),
            Err(Refusal::OtherSize { .. })
        ));
        let blobs = exchanges
            .exchange(call(1, 2, 0, b"y"), caller(None))
            .unwrap()
            .await
            .unwrap()
            .0
            .blobs;
        assert_eq!(blobs, [b"newer".to_vec(), b"y".to_vec()]);
        drop(again);
        assert_eq!(exchanges.0.lock().bytes, 0);
    }
}
