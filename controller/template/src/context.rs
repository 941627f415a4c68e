//! The state of one render that functions use: the source, the bounds, the values that can change.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use foldhash::quality::RandomState;
use indexmap::{IndexMap, map::Entry};

use crate::{
    error::{Fault, Outcome},
    format::Output,
    limits::Limits,
    options::Options,
    query::{Answer, Query, Variable},
    source::Source,
    text::Text,
    value::{Element, Key, List, Map, Struct, Value},
};

/// A compiled regular expression.
#[derive(Clone)]
pub(crate) struct Expression {
    pub(crate) regex: regex::Regex,
    /// What a search charges for each byte.
    pub(crate) cost: usize,
}

pub(crate) struct Context<'r> {
    pub(crate) options: &'r Options,
    source: &'r dyn Source,
    /// Steps that are left.
    steps: u64,
    /// Bytes of values that are left.
    value_bytes: u64,
    /// The buffer of [`Self::written`], kept for its capacity.
    buffer: Vec<u8>,
    /// All maps that may contain maps, to empty them at the end.
    maps: Vec<Rc<Map>>,
    /// The values of `scratch`.
    scratch: Option<Rc<Map>>,
    /// In the order of the queries. Each answer is the same during the whole render.
    answers: IndexMap<Query, Answer, RandomState>,
    missing: BTreeSet<QueryId>,
    /// Compiled regular expressions by their text.
    regexes: BTreeMap<String, Expression>,
}

/// A query that was made in this render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueryId(usize);

/// Approximate size of a value in memory.
pub(crate) const VALUE_BYTES: usize = 32;

/// Queries of a large template. More are possible.
const QUERIES: usize = 28;

/// Compiled regular expressions that a render keeps. Each takes a few times [`Limits::regex_bytes`] with its caches.
const REGEXES_MAX: usize = 32;

impl<'r> Context<'r> {
    pub(crate) fn new(options: &'r Options, source: &'r dyn Source) -> Self {
        Self {
            options,
            source,
            steps: options.limits.steps,
            value_bytes: options.limits.value_bytes,
            buffer: Vec::new(),
            maps: Vec::new(),
            scratch: None,
            answers: IndexMap::with_capacity_and_hasher(QUERIES, RandomState::default()),
            missing: BTreeSet::new(),
            regexes: BTreeMap::new(),
        }
    }

    /// Ends the render: returns the queries that were made, and those without an answer.
    pub(crate) fn finish(self) -> (Vec<Query>, BTreeSet<Query>) {
        // Every map is still held by the list while others are emptied, so that dropping a value does not recurse.
        self.maps.iter().for_each(|map| map.clear());
        let missing = self.missing.iter().filter_map(|asked| self.query(*asked).cloned()).collect();
        (self.answers.into_keys().collect(), missing)
    }

    pub(crate) fn limits(&self) -> &'r Limits {
        &self.options.limits
    }

    /// Counts a step.
    #[inline]
    pub(crate) fn step(&mut self) -> Outcome<()> {
        match self.steps.checked_sub(1) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => Err(self.too_many_steps()),
        }
    }

    /// Counts bytes of a new value, or of work that is proportional to them.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: usize) -> Outcome<()> {
        match self.value_bytes.checked_sub(bytes as u64) {
            Some(left) => {
                self.value_bytes = left;
                Ok(())
            }
            None => Err(self.too_many_bytes()),
        }
    }

    #[cold]
    fn too_many_steps(&self) -> Fault {
        Fault::limit(format!("rendering takes more than {} steps", self.limits().steps))
    }

    #[cold]
    fn too_many_bytes(&mut self) -> Fault {
        self.value_bytes = 0;
        let most = self.limits().value_bytes;
        Fault::limit(format!("the values of one render have more than {most} bytes"))
    }

    pub(crate) fn text(&mut self, text: impl Into<Text>) -> Outcome<Value> {
        let text = text.into();
        self.charge(text.len())?;
        Ok(Value::Str(text))
    }

    /// Makes a text of what is written.
    pub(crate) fn written(&mut self, write: impl FnOnce(&mut Output<'r>) -> Outcome<()>) -> Outcome<Value> {
        let mut out = Output::within(self.limits(), std::mem::take(&mut self.buffer));
        write(&mut out)?;
        let text = self.text(out.bytes.as_slice());
        self.buffer = out.bytes;
        text
    }

    pub(crate) fn list(&mut self, items: Vec<Value>, element: Element) -> Outcome<Value> {
        self.charge(items.len() * VALUE_BYTES + VALUE_BYTES)?;
        let list = Value::List(Rc::new(List::new(items, element)));
        if list.depth() > self.limits().depth {
            return Err(Fault::limit(format!("lists are nested more than {} deep", self.limits().depth)));
        }
        Ok(list)
    }

    /// Makes a list of strings.
    pub(crate) fn strings<T: Into<Text>>(&mut self, items: impl IntoIterator<Item = T>) -> Outcome<Value> {
        let mut texts = Vec::new();
        for item in items {
            self.charge(VALUE_BYTES)?;
            texts.push(self.text(item)?);
        }
        self.list(texts, Element::Str)
    }

    /// Makes a map, and keeps it until the end of the render.
    pub(crate) fn map(&mut self, entries: BTreeMap<Key, Value>, element: Element) -> Outcome<Value> {
        let map = self.new_map(Map::new(entries, element))?;
        self.maps.push(Rc::clone(&map));
        Ok(Value::Map(map))
    }

    /// Makes the map of the items of a variable. It contains no other map, so it is kept only once it is changed.
    pub(crate) fn items(&mut self, entries: BTreeMap<Key, Value>, variable: Arc<Variable>) -> Outcome<Value> {
        Ok(Value::Map(self.new_map(Map::of_variable(entries, variable))?))
    }

    fn new_map(&mut self, map: Map) -> Outcome<Rc<Map>> {
        self.charge((map.len() + 1) * 3 * VALUE_BYTES)?;
        Ok(Rc::new(map))
    }

    /// Makes a struct. Its fields are scalars and lists of strings.
    pub(crate) fn structure(&mut self, value: Struct) -> Outcome<Value> {
        self.charge(value.fields.len() * 2 * VALUE_BYTES)?;
        Ok(Value::Struct(Rc::new(value)))
    }

    /// Adds an entry to a map.
    pub(crate) fn insert(&mut self, map: &Rc<Map>, key: Key, value: Value) -> Outcome<()> {
        self.charge(3 * VALUE_BYTES)?;
        if map.variable.is_some() {
            self.maps.push(Rc::clone(map));
        }
        map.insert(key, value);
        Ok(())
    }

    pub(crate) fn scratch(&mut self) -> Outcome<Rc<Map>> {
        if let Some(map) = &self.scratch {
            return Ok(Rc::clone(map));
        }
        let Value::Map(map) = self.map(BTreeMap::new(), Element::Any)? else {
            return Err(Fault::new("scratch is not available"));
        };
        self.scratch = Some(Rc::clone(&map));
        Ok(map)
    }

    /// Makes a query, and returns its answer; [`Answer::Pending`] also marks it as missing.
    ///
    /// # Errors
    /// When the source cannot answer it.
    pub(crate) fn ask(&mut self, query: Query) -> Outcome<(QueryId, Answer)> {
        // It may be kept twice: as used, and as missing.
        let size = 2 * query.size();
        let entry = self.answers.entry(query);
        let asked = QueryId(entry.index());
        let (answer, size) = match entry {
            Entry::Occupied(known) => (known.get().clone(), 0),
            Entry::Vacant(entry) => {
                let answer = self.source.answer(entry.key());
                (entry.insert(answer).clone(), size)
            }
        };
        self.charge(size)?;
        match answer {
            Answer::Failed(why) => Err(Fault::refused(why)),
            Answer::Pending => {
                self.missing.insert(asked);
                Ok((asked, Answer::Pending))
            }
            Answer::Absent
            | Answer::Text(_)
            | Answer::Addresses(_)
            | Answer::Variable(_)
            | Answer::Variables(_)
            | Answer::Services(_)
            | Answer::ServiceNames(_)
            | Answer::Json(_) => Ok((asked, answer)),
        }
    }

    /// Marks a query as missing although it has an answer: the template wants to wait for more.
    pub(crate) fn miss(&mut self, asked: QueryId) {
        self.missing.insert(asked);
    }

    /// An answer that does not fit its query.
    pub(crate) fn unfitting(&self, asked: QueryId) -> Fault {
        let query = self.query(asked).map(Query::to_string).unwrap_or_default();
        Fault::new(format!("the source has answered {query} with data of another kind"))
    }

    fn query(&self, QueryId(index): QueryId) -> Option<&Query> {
        self.answers.get_index(index).map(|(query, _)| query)
    }

    pub(crate) fn regex(&self, expression: &str) -> Option<Expression> {
        self.regexes.get(expression).cloned()
    }

    /// Keeps a compiled regular expression, in place of all others if there are too many.
    pub(crate) fn keep_regex(&mut self, text: &str, expression: &Expression) {
        if self.regexes.len() >= REGEXES_MAX {
            self.regexes.clear();
        }
        self.regexes.insert(text.to_owned(), expression.clone());
    }

    pub(crate) fn unix_time(&self) -> Option<i64> {
        self.source.unix_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Fixed;

    /// Whether a map that contains itself lives on after its render.
    fn outlives(make: impl FnOnce(&mut Context<'_>) -> Outcome<Value>) -> bool {
        let (options, source) = (Options::default(), Fixed::default());
        let mut context = Context::new(&options, &source);
        let Ok(Value::Map(map)) = make(&mut context) else { panic!("no map") };
        assert!(context.insert(&map, Key::Int(1), Value::Map(Rc::clone(&map))).is_ok());
        let weak = Rc::downgrade(&map);
        drop(map);
        assert!(weak.upgrade().is_some(), "it contains itself");
        context.finish();
        weak.upgrade().is_some()
    }

    #[test]
    fn no_cycle_outlives_its_render() {
        assert!(!outlives(|context| context.map(BTreeMap::new(), Element::Any)));
        assert!(!outlives(|context| context.items(BTreeMap::new(), Arc::default())));
    }
}
