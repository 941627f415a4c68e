//! Lists of Nomad's API: selection, order and pages.
//!
//! In: the objects of the read model and the parameters `namespace`, `prefix`, `filter`, `reverse`, `per_page` and `next_token`.
//! Out: their JSON, lowest `CreateIndex` first, and the token of the next page. The caller renders each object.

use std::{borrow::Cow, sync::Arc};

use axum::response::{IntoResponse, Response};
use herdlet_api_types::view::{AllocView, JobView};
use serde::Serialize;
use serde_json::Value;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    filter::Filter,
    query::{NEXT_TOKEN, Read, Source},
};

/// An object in a list.
pub(super) trait Listed {
    /// Where the objects are stored.
    const SOURCE: Source = Source::Model;
    /// Its namespace; none for objects without one.
    fn namespace(&self) -> Option<&str>;
    /// The text that `prefix` is compared with.
    fn id(&self) -> Cow<'_, str>;
    /// The commit that created it.
    fn create_index(&self) -> u64;
    fn begins_with(&self, prefix: &str) -> bool {
        self.id().starts_with(prefix)
    }
}

impl Listed for Arc<JobView> {
    fn namespace(&self) -> Option<&str> {
        Some(&self.key.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.key.id)
    }

    fn create_index(&self) -> u64 {
        self.create_index
    }
}

impl Listed for Arc<AllocView> {
    fn namespace(&self) -> Option<&str> {
        Some(&self.spec.job_key.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Owned(self.spec.id.to_string())
    }

    fn create_index(&self) -> u64 {
        self.spec.create_index
    }

    /// UUIDs are case-insensitive.
    fn begins_with(&self, prefix: &str) -> bool {
        self.id().starts_with(&prefix.to_ascii_lowercase())
    }
}

/// A page of a list, and the token of the next one.
#[derive(Debug, PartialEq)]
pub(super) struct Page {
    pub(super) shown: Vec<Value>,
    pub(super) next: Option<String>,
}

impl Shared {
    /// Answers with a page of the list, and its index.
    pub(super) async fn list<T: Listed>(
        self: &Arc<Self>,
        read: &Read,
        find: impl Fn(&Self) -> ApiResult<Vec<T>>,
        show: impl Fn(&Self, &T) -> Value,
    ) -> ApiResult<Response> {
        self.arranged(read, find, show, |shown| shown).await
    }

    /// The same, with `arrange` to select and order the objects of the page.
    pub(super) async fn arranged<T: Listed>(
        self: &Arc<Self>,
        read: &Read,
        find: impl Fn(&Self) -> ApiResult<Vec<T>>,
        show: impl Fn(&Self, &T) -> Value,
        arrange: impl Fn(Vec<Value>) -> Vec<Value>,
    ) -> ApiResult<Response> {
        let filter = Filter::parse(&read.filter)?;
        let mut next = None;
        let list = |shared: &Self| {
            let page = page(find(shared)?, read, &filter, |one| show(shared, one))?;
            next = page.next;
            Ok(arrange(page.shown))
        };
        let answer = self.answer_from(T::SOURCE, read, list).await?;
        Ok(match next {
            Some(next) => ([(NEXT_TOKEN, next)], answer).into_response(),
            None => answer,
        })
    }

    /// A list without pages, in its own order. Only `filter` of `read` applies.
    pub(super) async fn filtered<T: Serialize>(
        self: &Arc<Self>,
        source: Source,
        read: &Read,
        find: impl Fn(&Self) -> ApiResult<Vec<T>>,
    ) -> ApiResult<Response> {
        let filter = Filter::parse(&read.filter)?;
        if read.filter.trim().is_empty() {
            return self.answer_from(source, read, find).await;
        }
        self.answer_from(source, read, |shared| fitting(find(shared)?, &filter)).await
    }
}

/// Filters objects, and returns their JSON.
pub(super) fn fitting<T: Serialize>(found: Vec<T>, filter: &Filter) -> ApiResult<Vec<Value>> {
    let mut fitting = Vec::new();
    for one in found {
        let shown = serde_json::to_value(one);
        let shown = shown.map_err(|error| ApiError::Failed(format!("write the answer: {error}")))?;
        if filter.accepts(&shown)? {
            fitting.push(shown);
        }
    }
    Ok(fitting)
}

/// Selects the requested page of `found`.
pub(super) fn page<T: Listed>(
    mut found: Vec<T>,
    read: &Read,
    filter: &Filter,
    show: impl Fn(&T) -> Value,
) -> ApiResult<Page> {
    let from = (!read.next_token.is_empty()).then(|| place(&read.next_token)).transpose()?;
    let is_before = |one: &T| {
        from.is_some_and(|(index, id)| {
            let (own, own_id) = (one.create_index(), one.id());
            if read.reverse { (own, &*own_id) > (index, id) } else { (own, &*own_id) < (index, id) }
        })
    };
    found.retain(|one| {
        one.namespace().is_none_or(|namespace| read.covers(namespace))
            && one.begins_with(&read.prefix)
            && !is_before(one)
    });
    found.sort_by(|a, b| a.create_index().cmp(&b.create_index()).then_with(|| a.id().cmp(&b.id())));
    if read.reverse {
        found.reverse();
    }
    let limit =
        if read.per_page == 0 { usize::MAX } else { usize::try_from(read.per_page).unwrap_or(usize::MAX) };
    let mut page = Page { shown: Vec::new(), next: None };
    for one in &found {
        let shown = show(one);
        if !filter.accepts(&shown)? {
            continue;
        }
        if page.shown.len() == limit {
            page.next = Some(format!("{}.{}", one.create_index(), one.id()));
            break;
        }
        page.shown.push(shown);
    }
    Ok(page)
}

/// Parses `CREATEINDEX.ID` of the first object of a page.
fn place(token: &str) -> ApiResult<(u64, &str)> {
    token
        .split_once('.')
        .and_then(|(index, id)| Some((index.parse().ok()?, id)))
        .ok_or_else(|| ApiError::bad(format!("next_token: {token:?} is not a token of this agent")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Namespace, id, create index.
    struct Thing(&'static str, &'static str, u64);

    impl Listed for Thing {
        fn namespace(&self) -> Option<&str> {
            Some(self.0)
        }

        fn id(&self) -> Cow<'_, str> {
            self.1.into()
        }

        fn create_index(&self) -> u64 {
            self.2
        }
    }

    fn things() -> Vec<Thing> {
        vec![
            Thing("default", "b", 3),
            Thing("default", "abc", 9),
            Thing("other", "abd", 4),
            Thing("default", "a", 10),
            Thing("default", "c", 3),
        ]
    }

    fn ask(read: &Read) -> (Vec<String>, Option<String>) {
        let filter = Filter::parse(&read.filter).unwrap();
        let page = page(things(), read, &filter, |thing| json!({ "ID": thing.1 })).unwrap();
        let ids = page.shown.iter().map(|shown| shown["ID"].as_str().unwrap().to_owned());
        (ids.collect(), page.next)
    }

    #[test]
    fn the_oldest_comes_first_unless_reversed() {
        assert_eq!(ask(&Read::default()).0, ["b", "c", "abc", "a"]);
        assert_eq!(ask(&Read { reverse: true, ..Read::default() }).0, ["a", "abc", "c", "b"]);
        let all = Read { namespace: Some("*".to_owned()), ..Read::default() };
        assert_eq!(ask(&all).0, ["b", "c", "abd", "abc", "a"]);
        assert_eq!(ask(&Read { prefix: "ab".to_owned(), ..all }).0, ["abd", "abc"]);
        let filter = "ID != \"c\"".to_owned();
        assert_eq!(ask(&Read { filter, ..Read::default() }).0, ["b", "abc", "a"]);
    }

    #[test]
    fn pages_follow_each_other_to_the_end_in_either_direction() {
        for (reverse, pages) in
            [(false, [vec!["b", "c", "abc"], vec!["a"]]), (true, [vec!["a", "abc", "c"], vec!["b"]])]
        {
            let mut token = Some(String::new());
            let mut seen = Vec::new();
            while let Some(next_token) = token {
                let read = Read { per_page: 3, reverse, next_token, ..Read::default() };
                let (ids, next) = ask(&read);
                seen.push(ids);
                token = next;
            }
            assert_eq!(seen, pages);
        }
        // If the object has been removed meanwhile, the page begins with the next one.
        let read = Read { next_token: "5.gone".to_owned(), ..Read::default() };
        assert_eq!(ask(&read).0, ["abc", "a"]);
        assert_eq!(ask(&Read { per_page: 4, ..Read::default() }).1, None, "nothing comes after the last");
    }

    #[test]
    fn a_token_of_another_kind_is_refused() {
        for token in ["x", "x.y", ".y", "-1.y"] {
            let read = Read { next_token: token.to_owned(), ..Read::default() };
            assert!(page(things(), &read, &Filter::default(), |_| Value::Null).is_err(), "{token}");
        }
    }
}
