//! Lists in any order, and the resulting changes.

use super::*;
use crate::wire::{Node, QueryMeta};

fn meta(index: u64) -> QueryMeta {
    QueryMeta { index, ..QueryMeta::default() }
}

fn list(index: u64, allocs: &[(&str, u64)]) -> ClientAllocsResponse {
    let allocs = Some(allocs.iter().map(|&(id, index)| (id.into(), index)).collect());
    ClientAllocsResponse { allocs, migrate_tokens: BTreeMap::new(), meta: meta(index) }
}

fn alloc(id: &AllocId, index: u64) -> Allocation {
    Allocation { id: id.clone(), alloc_modify_index: index, ..Allocation::default() }
}

/// The listing, if the list is not doubtful.
fn counts(watch: &mut Watch, answer: ClientAllocsResponse) -> Option<Listing> {
    match watch.listed(answer).unwrap() {
        Meaning::Nothing => None,
        Meaning::Counts(listing) => Some(listing),
        Meaning::Doubtful => panic!("the list is doubtful"),
    }
}

fn is_doubtful(watch: &mut Watch, answer: ClientAllocsResponse) -> bool {
    matches!(watch.listed(answer).unwrap(), Meaning::Doubtful)
}

/// A node registered at this index; zero if it is not registered.
fn node(create_index: u64) -> NodeResponse {
    let node = (create_index > 0).then(|| Node { create_index, ..Node::default() });
    NodeResponse { node, ..NodeResponse::default() }
}

/// Processes a list and everything it asks for. Returns the fetched and the removed allocations.
fn take(watch: &mut Watch, answer: ClientAllocsResponse) -> Option<(Vec<String>, Vec<String>)> {
    let listing = counts(watch, answer)?;
    let mut fetched = Vec::new();
    for batch in listing.batches() {
        let allocs = batch.ids.iter().map(|id| alloc(id, listing.allocs[id])).collect();
        let answer = AllocsResponse { allocs, meta: meta(batch.index + 1) };
        fetched.extend(listing.fetched(&batch, answer).unwrap());
    }
    let held = fetched.iter().map(|alloc| (alloc.id.clone(), alloc.alloc_modify_index)).collect();
    let desired = watch.desired(&listing, fetched, Vec::new());
    watch.applied(listing, held);
    let changed = desired.changed.iter().map(|changed| changed.alloc.id.to_string()).collect();
    Some((changed, desired.removed.iter().map(ToString::to_string).collect()))
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn only_newer_lists_count() {
    let mut watch = Watch::new([]);
    assert_eq!(watch.question(), Question::LATEST);
    assert_eq!(take(&mut watch, list(0, &[])), None, "an index without a change");
    assert_eq!(watch.question(), Question::LATEST);
    assert_eq!(take(&mut watch, list(10, &[("a", 5), ("b", 10)])), Some((names("a b"), names(""))));
    assert_eq!(watch.question(), Question { index: 10, responder: Responder::AnyServer });
    assert!(is_doubtful(&mut watch, list(9, &[])), "a server that lags behind");
    assert_eq!(take(&mut watch, list(9, &[("a", 5), ("b", 10)])), None, "a server without news");
    assert_eq!(take(&mut watch, list(11, &[("a", 5), ("b", 10)])), Some((names(""), names(""))));
    assert_eq!(
        take(&mut watch, list(12, &[("a", 5), ("b", 12), ("c", 12)])),
        Some((names("b c"), names("")))
    );
    assert_eq!(take(&mut watch, list(13, &[("c", 12)])), Some((names(""), names("a b"))));
}

#[test]
fn first_list_is_compared_with_stored_state() {
    let mut watch = Watch::new([("a".into(), 5), ("b".into(), 6), ("gone".into(), 7)]);
    assert_eq!(watch.question(), Question::LATEST);
    let listing = counts(&mut watch, list(20, &[("a", 5), ("b", 9)])).unwrap();
    assert!(watch.desired(&listing, Vec::new(), Vec::new()).is_first);
    assert_eq!(take(&mut watch, list(20, &[("a", 5), ("b", 9)])), Some((names("b"), names("gone"))));
}

#[test]
fn an_answer_is_taken_whole_or_not_at_all() {
    let mut watch = Watch::new([]);
    let listing = counts(&mut watch, list(10, &[("a", 5), ("b", 10)])).unwrap();
    let batch = listing.batches().next().unwrap();
    assert_eq!((batch.ids.len(), batch.index), (2, 9));
    let fetched = |allocs: &[(&str, u64)], index| {
        let allocs = allocs.iter().map(|&(id, index)| alloc(&id.into(), index)).collect();
        listing.fetched(&batch, AllocsResponse { allocs, meta: meta(index) }).map(|allocs| allocs.len())
    };
    assert_eq!(fetched(&[("a", 5), ("b", 10)], 9), Err(Unfit::Behind));
    assert_eq!(fetched(&[], 10), Err(Unfit::Missing(2)));
    assert_eq!(fetched(&[("a", 5), ("c", 10)], 10), Err(Unfit::Missing(1)));
    assert_eq!(fetched(&[("b", 9), ("a", 5)], 10), Err(Unfit::Old("b".into())));
    assert_eq!(fetched(&[("b", 11), ("a", 5), ("c", 1)], 12), Ok(2));
    assert_eq!(watch.question().index, 0, "nothing was applied");
}

#[test]
fn many_are_fetched_in_batches() {
    let mut watch = Watch::new([]);
    let ids: Vec<_> = (0..1_000_u64).map(|number| (format!("{number:04}"), number + 1)).collect();
    let ids: Vec<_> = ids.iter().map(|(id, index)| (&id[..], *index)).collect();
    let listing = counts(&mut watch, list(1_000, &ids)).unwrap();
    let batches: Vec<_> = listing.batches().map(|batch| (batch.ids.len(), batch.index)).collect();
    assert_eq!(batches, [(256, 255), (256, 511), (256, 767), (232, 999)]);
}

#[test]
fn a_batch_is_halved_down_to_one() {
    let mut watch = Watch::new([]);
    let listing = counts(&mut watch, list(10, &[("a", 5), ("b", 10), ("c", 7)])).unwrap();
    let whole = listing.batches().next().unwrap();
    let [one, other] = listing.halves(&whole).unwrap();
    assert_eq!((one.ids.len(), one.index, other.ids.len(), other.index), (1, 4, 2, 9));
    assert!(listing.halves(&one).is_none());
    assert_eq!(listing.index_of(&one.ids[0]), 5);
}

#[test]
fn empty_answer_delays_the_next_query() {
    let mut chance = Chance::of(1);
    assert!(after_nothing(Duration::ZERO, &mut chance) >= HASTE);
    assert_eq!(after_nothing(Duration::from_secs(300), &mut chance), Duration::ZERO);
    assert!((FAILED..2 * FAILED).contains(&after_unfit(&Unfit::Behind, &mut chance)));
    assert!((MISSING..2 * MISSING).contains(&after_unfit(&Unfit::Missing(1), &mut chance)));
    assert!((FAILED..2 * FAILED).contains(&after_failure(NextServer::Same, &mut chance)));
    assert!((HASTE..2 * HASTE).contains(&after_failure(NextServer::Another, &mut chance)));
}

/// Servers always send a list; treating a missing one as empty would remove everything.
#[test]
fn missing_list_is_not_an_empty_list() {
    let mut watch = Watch::default();
    let answer = ClientAllocsResponse { allocs: None, ..list(9, &[]) };
    assert_eq!(watch.listed(answer).err(), Some(Unfit::NoList));
}

/// A purged node gets an empty list with the index of all allocations.
#[test]
fn empty_list_counts_only_if_the_leader_confirms_it() {
    let mut watch = Watch::new([("a".into(), 5)]);
    let now = Instant::now();
    assert!(is_doubtful(&mut watch, list(90, &[])), "the first list too");
    let mut confirmed = |before, answer, after| {
        let found = watch.confirmed(&node(before), answer, &node(after), |_| false, now);
        found.map(|listing| {
            listing.map(|listing| watch.desired(&listing, Vec::new(), Vec::new()).removed.len())
        })
    };
    for (before, after) in [(0, 0), (0, 80), (80, 0), (3, 80)] {
        assert_eq!(confirmed(before, list(91, &[]), after), Err(Unfit::Unregistered), "{before} {after}");
    }
    assert_eq!(confirmed(3, list(91, &[("a", 5)]), 3), Ok(Some(0)), "the allocation exists after all");
    assert_eq!(confirmed(3, list(4, &[]), 3), Err(Unfit::Older { found: 4, known: 5 }), "other servers");
    assert_eq!(confirmed(3, ClientAllocsResponse { allocs: None, ..list(91, &[]) }, 3), Err(Unfit::NoList));
    assert_eq!(confirmed(3, list(91, &[]), 3), Ok(Some(1)), "the allocation is gone");
    let mut none = Watch::default();
    assert!(!is_doubtful(&mut none, list(90, &[])), "no allocation is lost");
}

#[test]
fn restored_servers_are_accepted_after_a_while() {
    let mut watch = Watch::default();
    let (mut now, mut listings) = (Instant::now(), Vec::new());
    take(&mut watch, list(50, &[("a", 5), ("b", 50), ("c", 9)]));
    let older = || list(20, &[("a", 5), ("c", 8), ("d", 20)]);
    assert!(is_doubtful(&mut watch, older()));
    assert_eq!(watch.question().responder, Responder::AnyServer);
    // The leader has all of them, so a follower lagged behind.
    assert!(
        watch
            .confirmed(&node(1), list(50, &[("a", 5), ("b", 50), ("c", 9)]), &node(1), |_| false, now)
            .unwrap()
            .is_none()
    );
    for _ in 0..7 {
        now += Duration::from_secs(60);
        listings.push(watch.confirmed(&node(1), older(), &node(1), |_| false, now).map(|listing| {
            let listing = listing.unwrap();
            assert!(listing.is_restored());
            listing.fetch.iter().map(ToString::to_string).collect::<Vec<_>>()
        }));
    }
    assert_eq!(watch.question(), Question::LATEST, "the leader is queried");
    let older = Err(Unfit::Older { found: 20, known: 50 });
    assert!(listings[..5].iter().all(|listings| *listings == older), "{listings:?}");
    assert_eq!(listings[5..], [Ok(names("c d")), Ok(names("c d"))]);
    // A newer list in between restarts the count.
    take(&mut watch, list(51, &[("a", 5), ("b", 50), ("c", 9)]));
    now += Duration::from_secs(60);
    assert!(watch.confirmed(&node(1), list(20, &[("d", 20)]), &node(1), |_| false, now).is_err());
}

/// Allocations collected between two questions move no index of the node.
#[test]
fn allocation_collected_between_queries_is_removed() {
    let mut watch = Watch::default();
    take(&mut watch, list(50, &[("a", 5), ("b", 50)]));
    assert!(is_doubtful(&mut watch, list(5, &[("a", 5)])));
    let mut confirmed = |allocs: &[(&str, u64)], has_ended: bool| {
        watch.confirmed(
            &node(1),
            list(5, allocs),
            &node(1),
            |id| has_ended && id.as_str() == "b",
            Instant::now(),
        )
    };
    for allocs in [&[("a", 4)][..], &[("b", 50)], &[("a", 5), ("c", 3)]] {
        assert!(matches!(confirmed(allocs, true), Err(Unfit::Older { .. })), "{allocs:?}");
    }
    assert!(confirmed(&[("a", 5)], false).is_err(), "the allocation runs");
    let listing = confirmed(&[("a", 5)], true).unwrap().unwrap();
    assert!(!listing.is_restored());
    let desired = watch.desired(&listing, Vec::new(), Vec::new());
    assert_eq!((desired.removed, desired.index), (vec!["b".into()], 50));
}

#[test]
fn a_burst_of_lists_is_taken_at_once_and_a_flood_at_its_pace() {
    let begun = Instant::now();
    let (mut rounds, mut now) = (Rounds::default(), begun);
    for round in 0..1_000 {
        let wait = rounds.next(now);
        assert_eq!(wait.is_zero(), round < ROUNDS, "{round}");
        now += wait;
    }
    assert_eq!(now - begun, ROUND * (1_000 - ROUNDS));
    // After a pause there is another burst.
    now += ROUND * ROUNDS;
    assert!((0..ROUNDS).all(|_| rounds.next(now).is_zero()) && !rounds.next(now).is_zero());
}
