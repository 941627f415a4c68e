//! `Templates` of a task in Nomad's JSON.

use serde_json::{Value, json};

use crate::job::{ChangeScript, Template, TemplateChange, TemplateSource, TemplateWait};

/// The templates of a task; null if there are none.
pub(super) fn templates(templates: &[Template]) -> Value {
    if templates.is_empty() { Value::Null } else { templates.iter().map(template).collect() }
}

fn template(template: &Template) -> Value {
    let (source, text) = match &template.source {
        TemplateSource::Inline(text) => ("", text.as_str()),
        TemplateSource::File(path) => (path.as_str(), ""),
    };
    let (signal, script) = match &template.on_change {
        TemplateChange::Noop | TemplateChange::Restart => ("", None),
        TemplateChange::Signal(signal) => (signal.as_str(), None),
        TemplateChange::Script(script) => ("", Some(self::script(script))),
    };
    json!({
        "SourcePath": source, "DestPath": template.destination, "EmbeddedTmpl": text,
        "ChangeMode": template.on_change.mode(), "ChangeSignal": signal, "ChangeScript": script,
        "Splay": template.splay, "Perms": std_alloc::format!("{:04o}", template.perms),
        "Uid": template.uid, "Gid": template.gid,
        "LeftDelim": template.left_delimiter, "RightDelim": template.right_delimiter,
        "Envvars": template.env, "VaultGrace": 0, "Wait": template.wait.as_ref().map(wait),
        "ErrMissingKey": template.error_on_missing_key, "Once": template.once,
    })
}

fn script(script: &ChangeScript) -> Value {
    json!({
        "Command": script.command, "Args": script.args, "Timeout": script.timeout,
        "FailOnError": script.fail_on_error, "RunOnFirstRender": script.run_on_first_render,
    })
}

fn wait(wait: &TemplateWait) -> Value {
    json!({ "Min": wait.min, "Max": wait.max })
}
