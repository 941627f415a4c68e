//! Which functions a template calls, so that a job can be refused before it is placed.
//!
//! In: a parsed template. Out: its first call of each function, whether or not a render would reach it.

use std::collections::BTreeMap;

use crate::{
    ast::{Operand, Term},
    error::Position,
    function::Function,
    functions,
    template::Template,
};

/// A call in the text of a template.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub function: &'static Function,
    pub position: Position,
}

impl Template {
    /// Whether a function is on the denylist.
    pub fn denies(&self, function: &Function) -> bool {
        let mut patterns = self.options().denylist.iter();
        patterns.any(|pattern| functions::matches_pattern(pattern, function.name))
    }

    /// Returns the first call of each function that `is_wanted`, in the order of the text.
    pub fn calls(&self, is_wanted: impl Fn(&Function) -> bool) -> Vec<Call> {
        let mut first: BTreeMap<&str, (usize, &'static Function)> = BTreeMap::new();
        for operand in &self.tree().operands {
            if let Some(function) = called(operand) {
                let start = operand.span.0 as usize;
                let found = first.entry(function.name).or_insert((start, function));
                found.0 = found.0.min(start);
            }
        }
        let mut found: Vec<(usize, &'static Function)> =
            first.into_values().filter(|(_, function)| is_wanted(function)).collect();
        found.sort_by_key(|(start, _)| *start);
        let call = |(start, function)| Call { function, position: Position::of(self.text(), start) };
        found.into_iter().map(call).collect()
    }
}

fn called(operand: &Operand) -> Option<&'static Function> {
    match &operand.term {
        Term::Function(function) => Some(*function),
        Term::Denied(name) => functions::find(name),
        Term::Dot
        | Term::Nil
        | Term::Bool(_)
        | Term::Number(_)
        | Term::Str(_)
        | Term::Variable(_)
        | Term::Paren(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Support};

    #[test]
    fn first_call_of_each_function_is_found_wherever_it_is() {
        let text = "{{ define \"x\" }}{{ key \"a\" }}{{ end }}\n{{ if env \"A\" }}{{ range service \"web\" }}\n  \
                    {{ .Name | toUpper }}{{ else }}{{ with (secret \"s\") }}{{ end }}{{ end }}{{ end }}\n{{ key \"b\" }}";
        let template = Template::parse(text, &Options::default()).unwrap();
        let places = |calls: Vec<Call>| -> Vec<(&str, usize, usize)> {
            calls.iter().map(|call| (call.function.name, call.position.line, call.position.column)).collect()
        };
        let all = [("key", 1, 20), ("env", 2, 7), ("service", 2, 26), ("toUpper", 3, 14), ("secret", 3, 43)];
        assert_eq!(places(template.calls(|_| true)), all);
        let of_consul = template.calls(|function| function.support() == Support::NeedsConsul);
        assert_eq!(places(of_consul), [all[0], all[2]]);
    }

    #[test]
    fn denied_function_is_a_call_too() {
        let options = Options { denylist: vec!["execute*".to_owned()], ..Options::default() };
        let template = Template::parse("{{ executeTemplate \"x\" }}", &options).unwrap();
        assert_eq!(template.calls(|_| true)[0].function.name, "executeTemplate");
    }
}
