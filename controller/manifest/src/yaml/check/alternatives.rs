//! `anyOf` and `oneOf`: enums with content, a type or null, one type or another.
//!
//! In: the choices and a node. Out: nothing if one fits; otherwise the problems of the choice that was
//! evidently intended, by its type or key, instead of "none fits".

use serde_json::Value as Json;

use super::facets::Facets;
use super::fields::only_field;
use super::{Enclosing, Problems, Walk, mismatch, shorten};
use crate::yaml::node::Node;
use crate::yaml::path::Trail;
use crate::yaml::phrases::{nearest, one_of};

impl Walk<'_> {
    pub(super) fn alternatives(
        &mut self,
        facets: &Facets<'_>,
        choices: &[Json],
        node: &Node,
        trail: &Trail<'_>,
        outer: Option<&Enclosing<'_>>,
    ) {
        let choices: Vec<(&Json, Facets<'_>)> =
            choices.iter().map(|choice| (choice, Facets::resolve(self.root, choice))).collect();
        let constants: Vec<&Json> =
            choices.iter().filter_map(|(_, choice)| choice.constants()).flatten().collect();
        if constants.iter().any(|value| mismatch::equals(node, value)) {
            return;
        }
        let open: Vec<&(&Json, Facets<'_>)> = choices
            .iter()
            .filter(|(_, choice)| choice.constants().is_none() && mismatch::type_fits(choice, node))
            .collect();
        match open.as_slice() {
            [] if constants.is_empty() || node.scalar_text().is_none() => {
                self.report(node.position, trail, || mismatch::message(facets, node));
            }
            [] => self.report(node.position, trail, || mismatch::not_one_of(&constants, node)),
            [(only, _)] => self.node(only, node, trail, outer),
            several => self.several(several, node, trail, outer),
        }
    }

    /// Chooses among several choices of the right type: by a key of the map, otherwise the one with the
    /// fewest problems.
    fn several(
        &mut self,
        choices: &[&(&Json, Facets<'_>)],
        node: &Node,
        trail: &Trail<'_>,
        outer: Option<&Enclosing<'_>>,
    ) {
        let keys: Vec<Option<&str>> = choices.iter().map(|(_, choice)| only_field(choice)).collect();
        if let (Some(entries), Some(keys)) = (node.entries(), keys.into_iter().collect::<Option<Vec<_>>>()) {
            let named = entries.iter().find_map(|entry| {
                keys.iter().position(|key| **key == *entry.key).and_then(|at| choices.get(at))
            });
            return match (named, entries.first()) {
                (Some((choice, _)), _) => self.node(choice, node, trail, outer),
                (None, Some(first)) => {
                    self.report(first.key_position, trail, || unknown_choice(&keys, &first.key))
                }
                (None, None) => self.report(node.position, trail, || format!("needs {}", names(&keys))),
            };
        }
        let mut least: Option<Problems> = None;
        for (choice, _) in choices {
            let found = std::mem::take(&mut self.problems);
            self.node(choice, node, trail, outer);
            let problems = std::mem::replace(&mut self.problems, found);
            if problems.is_empty() {
                return;
            }
            if least.as_ref().is_none_or(|least| problems.len() < least.len()) {
                least = Some(problems);
            }
        }
        self.problems.append(least.unwrap_or_default());
    }
}

fn unknown_choice(keys: &[&str], written: &str) -> String {
    let sentence = format!("expected {}, found `{}`", names(keys), shorten(written));
    match nearest(written, keys.iter().copied()) {
        Some(key) => format!("{sentence}; did you mean `{key}`?"),
        None => sentence,
    }
}

fn names(keys: &[&str]) -> String {
    one_of(&keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>())
}
