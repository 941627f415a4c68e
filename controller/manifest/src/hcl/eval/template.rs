//! Templates: texts that contain `${…}` and `%{…}`.
//!
//! In: a template and its context. Out: its text; or, for a single interpolation without any other text, the
//! value itself. References that only resolve when the task runs stay as written.

use hcl_edit::template::{Directive, Element, Interpolation, Strip, Template};

use super::super::scope::Fault;
use super::super::value::Value;
use super::Eval;

/// Evaluates a template.
pub(super) fn value(eval: &Eval<'_, '_>, template: &Template) -> Result<Value, Fault> {
    if let Some(Element::Interpolation(only)) = template.as_single_element() {
        return match eval.left_in_place(&only.expr)? {
            Some(text) => Ok(Value::Str(text)),
            None => eval.value(&only.expr),
        };
    }
    let mut text = Text::default();
    render(eval, template, &mut text)?;
    Ok(Value::Str(text.done))
}

/// A text under construction.
#[derive(Default)]
struct Text {
    done: String,
    /// Set if the last sequence strips the whitespace after it (`~}`).
    strips: bool,
}

impl Text {
    fn push(&mut self, text: &str) {
        let text = if self.strips { text.trim_start() } else { text };
        self.strips &= text.is_empty();
        self.done.push_str(text);
    }

    /// Begins a sequence `${…}` or `%{…}`.
    fn begin(&mut self, strip: Strip) {
        if matches!(strip, Strip::Start | Strip::Both) {
            self.done.truncate(self.done.trim_end().len());
        }
        self.strips = false;
    }

    /// Ends the sequence.
    fn end(&mut self, strip: Strip) {
        self.strips = matches!(strip, Strip::End | Strip::Both);
    }
}

fn render(eval: &Eval<'_, '_>, template: &Template, text: &mut Text) -> Result<(), Fault> {
    for element in template {
        match element {
            Element::Literal(literal) => {
                eval.scope.spend(1 + literal.len() / 64, eval.position(literal))?;
                text.push(literal.as_str());
            }
            Element::Interpolation(interpolation) => self::interpolation(eval, interpolation, text)?,
            Element::Directive(directive) => self::directive(eval, directive, text)?,
        }
    }
    Ok(())
}

fn interpolation(eval: &Eval<'_, '_>, interpolation: &Interpolation, text: &mut Text) -> Result<(), Fault> {
    text.begin(interpolation.strip);
    if let Some(left) = eval.left_in_place(&interpolation.expr)? {
        text.push(&left);
    } else {
        let value = eval.value(&interpolation.expr)?;
        text.push(&eval.text(&value, &interpolation.expr)?);
    }
    text.end(interpolation.strip);
    Ok(())
}

fn directive(eval: &Eval<'_, '_>, directive: &Directive, text: &mut Text) -> Result<(), Fault> {
    match directive {
        Directive::If(directive) => {
            let (then, otherwise) = (&directive.if_expr, directive.else_expr.as_ref());
            text.begin(then.strip);
            let holds = eval.boolean(&then.cond_expr)?;
            if holds {
                text.end(then.strip);
                render(eval, &then.template, text)?;
            }
            if let Some(otherwise) = otherwise {
                text.begin(if holds { otherwise.strip } else { Strip::None });
                if !holds {
                    text.end(otherwise.strip);
                    render(eval, &otherwise.template, text)?;
                }
            }
            text.begin(directive.endif_expr.strip);
            text.end(directive.endif_expr.strip);
        }
        Directive::For(directive) => {
            let each = &directive.for_expr;
            text.begin(each.strip);
            let collection = eval.value(&each.collection_expr)?;
            let names = (each.key_var.as_ref().map(|name| name.as_str()), each.value_var.as_str());
            eval.items(&collection, names, &each.collection_expr, &mut |inner| {
                text.end(each.strip);
                render(inner, &each.template, text)?;
                text.begin(directive.endfor_expr.strip);
                Ok(())
            })?;
            text.end(directive.endfor_expr.strip);
        }
    }
    Ok(())
}
