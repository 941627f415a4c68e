//! Faults on demand: a file `DATA/faults/NAME` makes the call with this name fail.
//!
//! In: the file's words, `[always] [after] EFFECT`. Out: the fault. Without `always` the file is removed at the fault, so
//! the next call succeeds. With `after` the call has its effect first, and only its response is lost.
//!
//! | effect | meaning |
//! | --- | --- |
//! | `hang` | no response, until the connection ends |
//! | `die` | the process ends |
//! | `close` | the connection ends |
//! | `delay MS` | the call begins late, or with `after` its response is late |
//! | `nothing` | success without an effect |
//! | `status CODE TEXT…` | a gRPC status |
//! | `garbage` | a message that can't be decoded |
//! | `truncated` | a message that is shorter than its length |
//! | `endless` | a message without an end |
//! | `statusless` | a response without a status |
//! | `html` | a response of a web server |

use std::{fs, io, path::Path, time::Duration};

/// What happens in place of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Hang,
    Die,
    Close,
    Delay(Duration),
    Nothing,
    Status(u32, String),
    Garbage,
    Truncated,
    Endless,
    Statusless,
    Html,
}

/// When it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    BeforeCall,
    AfterCall,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub moment: Moment,
    pub effect: Effect,
}

/// Takes the fault of a call, if there is one.
///
/// # Errors
///
/// If the file can't be read, or has other words.
pub fn take(data: &Path, call: &str) -> io::Result<Option<Fault>> {
    let path = data.join("faults").join(call);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let (words, is_permanent) = match text.trim().strip_prefix("always ") {
        Some(rest) => (rest, true),
        None => (text.trim(), false),
    };
    let fault = parse(words).ok_or_else(|| io::Error::other(format!("unknown fault {text:?}")))?;
    if !is_permanent {
        fs::remove_file(&path)?;
    }
    Ok(Some(fault))
}

fn parse(words: &str) -> Option<Fault> {
    let (words, moment) = match words.strip_prefix("after ") {
        Some(rest) => (rest, Moment::AfterCall),
        None => (words, Moment::BeforeCall),
    };
    let (name, rest) = words.split_once(' ').unwrap_or((words, ""));
    let effect = match name {
        "hang" => Effect::Hang,
        "die" => Effect::Die,
        "close" => Effect::Close,
        "delay" => Effect::Delay(Duration::from_millis(rest.parse().ok()?)),
        "nothing" => Effect::Nothing,
        "status" => {
            let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Effect::Status(code.parse().ok()?, text.to_owned())
        }
        "garbage" => Effect::Garbage,
        "truncated" => Effect::Truncated,
        "endless" => Effect::Endless,
        "statusless" => Effect::Statusless,
        "html" => Effect::Html,
        _ => return None,
    };
    Some(Fault { moment, effect })
}
