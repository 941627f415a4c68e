//! `locals`: named values that may refer to each other, in any order.
//!
//! In: the blocks of a text, and `var` in the scope. Out: `local` in the scope. Each local is evaluated once,
//! after its references.

use std::collections::{BTreeMap, BTreeSet};

use hcl_edit::expr::{Expression, Traversal, TraversalOperator};
use hcl_edit::structure::{Attribute, Body, Structure};
use hcl_edit::visit::{Visit, visit_traversal};

use super::eval::Eval;
use super::scope::{Fault, Scope};
use crate::yaml::Problems;

/// The same nesting limit as that of a text.
const DEPTH_MAX: usize = 64;

/// Adds `local` to the scope.
pub(super) fn declare(syntax: &Body, scope: &mut Scope<'_>, problems: &mut Problems) {
    let mut waiting: BTreeMap<&str, (&Attribute, BTreeSet<String>)> = BTreeMap::new();
    for structure in
        syntax.blocks().filter(|block| block.ident.as_str() == "locals").flat_map(|block| &block.body)
    {
        match structure {
            Structure::Attribute(attribute) => {
                let mut references = References::default();
                references.visit_expr(&attribute.value);
                let name = attribute.key.as_str();
                if waiting.insert(name, (attribute, references.0)).is_some() {
                    let position = scope.source.position(&attribute.key);
                    problems.push(
                        scope.source.problem_at(position, format!("the local `{name}` is defined twice")),
                    );
                }
            }
            Structure::Block(block) => {
                let position = scope.source.position(&block.ident);
                problems.push(scope.source.problem_at(position, "locals may only contain NAME = VALUE"));
            }
        }
    }
    in_order(waiting, scope, problems);
}

/// Evaluates the locals in topological order. Those that remain refer to themselves.
fn in_order(
    mut waiting: BTreeMap<&str, (&Attribute, BTreeSet<String>)>,
    scope: &mut Scope<'_>,
    problems: &mut Problems,
) {
    let names: BTreeSet<String> = waiting.keys().map(|name| (*name).to_owned()).collect();
    let mut followers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    for (name, (_, references)) in &waiting {
        let known: Vec<&String> = references.iter().filter(|reference| names.contains(*reference)).collect();
        open.insert((*name).to_owned(), known.len());
        for reference in known {
            followers.entry(reference.clone()).or_default().push((*name).to_owned());
        }
    }
    let mut ready: Vec<String> =
        open.iter().filter(|(_, open)| **open == 0).map(|(name, _)| name.clone()).collect();
    while let Some(name) = ready.pop() {
        let Some((attribute, _)) = waiting.remove(name.as_str()) else { continue };
        match Eval::new(scope).value(&attribute.value) {
            Ok(value) if value.depth() > DEPTH_MAX => {
                let message =
                    format!("the local `{name}` nests lists and objects more than {DEPTH_MAX} deep");
                problems.push(scope.source.problem_at(scope.source.position(&attribute.key), message));
            }
            Ok(value) => {
                scope.locals.insert(name.clone(), value);
            }
            Err(Fault::Wrong(problem)) => problems.push(problem),
            Err(Fault::Exhausted(problem)) => return problems.push(problem),
        }
        for follower in followers.remove(&name).into_iter().flatten() {
            if let Some(open) = open.get_mut(&follower) {
                *open -= 1;
                if *open == 0 {
                    ready.push(follower);
                }
            }
        }
    }
    for (name, (attribute, _)) in waiting {
        let position = scope.source.position(&attribute.key);
        problems.push(scope.source.problem_at(position, format!("the local `{name}` refers to itself")));
    }
}

/// The locals that an expression refers to.
#[derive(Default)]
struct References(BTreeSet<String>);

impl Visit for References {
    fn visit_traversal(&mut self, traversal: &Traversal) {
        if let Expression::Variable(root) = &traversal.expr
            && root.as_str() == "local"
            && let Some(TraversalOperator::GetAttr(name)) =
                traversal.operators.first().map(|step| step.value())
        {
            self.0.insert(name.as_str().to_owned());
        }
        visit_traversal(self, traversal);
    }
}
