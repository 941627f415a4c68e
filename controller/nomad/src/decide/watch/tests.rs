//! Lists in any order, and what they change.

use super::*;
use crate::wire::QueryMeta;

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

/// Takes a list with all that it wants. Gives what was fetched and what is gone.
fn take(watch: &mut Watch, answer: ClientAllocsResponse) -> Option<(Vec<String>, Vec<String>)> {
    let listing = watch.listed(answer).unwrap()?;
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
    assert_eq!(watch.question(), Question { index: 0, allow_stale: false });
    assert_eq!(take(&mut watch, list(0, &[])), None, "an index of nothing");
    assert_eq!(watch.question(), Question { index: 0, allow_stale: false });
    assert_eq!(take(&mut watch, list(10, &[("a", 5), ("b", 10)])), Some((names("a b"), names(""))));
    assert_eq!(watch.question(), Question { index: 10, allow_stale: true });
    assert_eq!(take(&mut watch, list(9, &[])), None, "a server that lags behind");
    assert_eq!(take(&mut watch, list(10, &[])), None, "one that has nothing new");
    assert_eq!(take(&mut watch, list(11, &[("a", 5), ("b", 10)])), Some((names(""), names(""))));
    assert_eq!(
        take(&mut watch, list(12, &[("a", 5), ("b", 12), ("c", 12)])),
        Some((names("b c"), names("")))
    );
    assert_eq!(take(&mut watch, list(13, &[("c", 12)])), Some((names(""), names("a b"))));
}

#[test]
fn what_was_known_before_is_compared_with_the_first_list() {
    let mut watch = Watch::new([("a".into(), 5), ("b".into(), 6), ("gone".into(), 7)]);
    assert_eq!(watch.question(), Question { index: 0, allow_stale: false });
    let listing = watch.listed(list(20, &[("a", 5), ("b", 9)])).unwrap().unwrap();
    assert!(watch.desired(&listing, Vec::new(), Vec::new()).is_first);
    assert_eq!(take(&mut watch, list(20, &[("a", 5), ("b", 9)])), Some((names("b"), names("gone"))));
}

#[test]
fn an_answer_is_taken_whole_or_not_at_all() {
    let watch = Watch::new([]);
    let listing = watch.listed(list(10, &[("a", 5), ("b", 10)])).unwrap().unwrap();
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
    let watch = Watch::new([]);
    let ids: Vec<_> = (0..1_000_u64).map(|number| (format!("{number:04}"), number + 1)).collect();
    let ids: Vec<_> = ids.iter().map(|(id, index)| (&id[..], *index)).collect();
    let listing = watch.listed(list(1_000, &ids)).unwrap().unwrap();
    let batches: Vec<_> = listing.batches().map(|batch| (batch.ids.len(), batch.index)).collect();
    assert_eq!(batches, [(256, 255), (256, 511), (256, 767), (232, 999)]);
}

#[test]
fn a_batch_is_halved_down_to_one() {
    let watch = Watch::new([]);
    let listing = watch.listed(list(10, &[("a", 5), ("b", 10), ("c", 7)])).unwrap().unwrap();
    let whole = listing.batches().next().unwrap();
    let [one, other] = listing.halves(&whole).unwrap();
    assert_eq!((one.ids.len(), one.index, other.ids.len(), other.index), (1, 4, 2, 9));
    assert!(listing.halves(&one).is_none());
    assert_eq!(listing.index_of(&one.ids[0]), 5);
}

#[test]
fn who_says_nothing_new_at_once_is_not_asked_at_once() {
    let mut chance = Chance::of(1);
    assert!(after_nothing(Duration::ZERO, &mut chance) >= HASTE);
    assert_eq!(after_nothing(Duration::from_secs(300), &mut chance), Duration::ZERO);
    assert!((FAILED..2 * FAILED).contains(&after_unfit(&Unfit::Behind, &mut chance)));
    assert!((MISSING..2 * MISSING).contains(&after_unfit(&Unfit::Missing(1), &mut chance)));
    assert!((FAILED..2 * FAILED).contains(&after_failure(&mut chance)));
}

/// A server always sends one: an answer without it would otherwise remove everything.
#[test]
fn a_list_that_is_not_there_is_no_empty_one() {
    let watch = Watch::default();
    let answer = ClientAllocsResponse { allocs: None, ..list(9, &[]) };
    assert_eq!(watch.listed(answer).err(), Some(Unfit::NoList));
}
