//! The deterministic functions of Nomad's job files, by name.
//!
//! In: a name and values. Out: a value, or the reason why there is none. Functions that read files, clocks or
//! random numbers are recognised and refused: one job file must always give the same job.

mod collections;
mod encoding;
mod network;
mod numbers;
mod strings;

use super::super::scope::Fault;
use super::super::value::Value;
use crate::yaml::nearest;

/// Why a function returns no value.
pub(super) enum Refusal {
    /// The name or the arguments are wrong.
    Wrong(String),
    /// The work budget is exhausted.
    Exhausted(Fault),
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self::Wrong(message)
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Self {
        Self::Wrong(message.to_owned())
    }
}

/// Charges work before it is done, for functions whose result can be larger than their arguments.
pub(super) type Spend<'a> = &'a dyn Fn(usize) -> Result<(), Fault>;

pub(super) type Answer = Result<Value, Refusal>;

/// A function with its minimum and maximum number of arguments.
struct Function {
    name: &'static str,
    arguments: (usize, usize),
    call: fn(&Arguments<'_>) -> Answer,
}

/// The arguments of a call. Their number is already checked.
pub(super) struct Arguments<'a> {
    values: Vec<Value>,
    spend: Spend<'a>,
}

/// Functions of Nomad that are refused, with the reason.
const REFUSED: [(&[&str], &str); 4] = [
    (
        &["abspath", "file", "filebase64", "fileexists", "fileset", "pathexpand", "templatefile"],
        "reads files of the machine, but a job file must give the same job on every machine; declare a variable, and pass the text: --var NAME=\"$(cat FILE)\"",
    ),
    (
        &["bcrypt", "timestamp", "uuidv4"],
        "returns a different value each time, so the job would change whenever the file is read",
    ),
    (
        &[
            "consul_key",
            "convert",
            "csvdecode",
            "formatdate",
            "md5",
            "rsadecrypt",
            "sha1",
            "timeadd",
            "uuidv5",
            "vault",
            "yamldecode",
            "yamlencode",
        ],
        "is not supported",
    ),
    (&["env"], "is not supported; declare a variable, and set it with NOMAD_VAR_<name>"),
];

pub(super) fn call(name: &str, values: Vec<Value>, spend: Spend<'_>) -> Answer {
    let functions = || tables().into_iter().flatten();
    let Some(function) = functions().find(|function| function.name == name) else {
        return Err(Refusal::Wrong(unknown(name, functions().map(|function| function.name))));
    };
    let (least, most) = function.arguments;
    if !(least..=most).contains(&values.len()) {
        let wanted = match most {
            _ if least == most => format!("{least}"),
            usize::MAX => format!("at least {least}"),
            _ => format!("{least} to {most}"),
        };
        let plural = if wanted == "1" || wanted.ends_with(" 1") { "" } else { "s" };
        return Err(format!("`{name}` takes {wanted} argument{plural}, found {}", values.len()).into());
    }
    (function.call)(&Arguments { values, spend }).map_err(|refusal| match refusal {
        Refusal::Wrong(message) => Refusal::Wrong(format!("`{name}`: {message}")),
        exhausted @ Refusal::Exhausted(_) => exhausted,
    })
}

fn tables() -> [&'static [Function]; 5] {
    [collections::FUNCTIONS, encoding::FUNCTIONS, network::FUNCTIONS, numbers::FUNCTIONS, strings::FUNCTIONS]
}

fn unknown<'n>(name: &str, names: impl Iterator<Item = &'n str> + Clone) -> String {
    if let Some((_, why)) = REFUSED.iter().find(|(names, _)| names.contains(&name)) {
        return format!("the function `{name}` {why}");
    }
    match nearest(name, names.chain(["try", "can"])) {
        Some(near) => format!("there is no function `{name}`; did you mean `{near}`?"),
        None => format!("there is no function `{name}`"),
    }
}

impl Arguments<'_> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn all(&self) -> &[Value] {
        &self.values
    }

    /// Returns an argument; null if there are fewer.
    fn value(&self, number: usize) -> &Value {
        self.values.get(number).unwrap_or(&Value::Null)
    }

    fn text(&self, number: usize) -> Result<String, String> {
        let value = self.value(number);
        value
            .text()
            .ok_or_else(|| format!("argument {} must be a string, found {}", number + 1, value.kind()))
    }

    fn int(&self, number: usize) -> Result<i128, String> {
        let value = self.value(number);
        value
            .as_int()
            .ok_or_else(|| format!("argument {} must be a whole number, found {}", number + 1, value.kind()))
    }

    fn float(&self, number: usize) -> Result<f64, String> {
        let value = self.value(number);
        value
            .as_f64()
            .ok_or_else(|| format!("argument {} must be a number, found {}", number + 1, value.kind()))
    }

    fn list(&self, number: usize) -> Result<&[Value], String> {
        let value = self.value(number);
        let Value::List(items) = value else {
            return Err(format!("argument {} must be a list, found {}", number + 1, value.kind()));
        };
        Ok(items)
    }

    fn map(&self, number: usize) -> Result<&std::collections::BTreeMap<String, Value>, String> {
        let value = self.value(number);
        let Value::Map(entries) = value else {
            return Err(format!("argument {} must be an object, found {}", number + 1, value.kind()));
        };
        Ok(entries)
    }

    /// Returns the items of a list as strings.
    fn texts(&self, number: usize) -> Result<Vec<String>, String> {
        let text = |value: &Value| {
            value.text().ok_or_else(|| format!("argument {} must be a list of strings", number + 1))
        };
        self.list(number)?.iter().map(text).collect()
    }

    fn spend(&self, work: usize) -> Result<(), Refusal> {
        (self.spend)(work).map_err(Refusal::Exhausted)
    }
}
