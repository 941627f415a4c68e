//! What a rule that the kernel lists does with every packet.
//!
//! In: the expressions of a rule. Out: its decision, if it has no condition. Expressions that only count or log a packet are none.

use crate::message;

use super::{EXPRESSION_DATA, EXPRESSION_NAME, LIST_ITEM};

const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// The name of an extension of iptables, in an expression that calls it.
const EXTENSION_NAME: u16 = 1;

/// Expressions that let every packet through to the next one.
const WITHOUT_EFFECT: [&str; 3] = ["counter", "log", "notrack"];

/// What happens with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It ends here: dropped, or rejected with an answer.
    Drop,
    /// It passes this table.
    Accept,
    /// It goes on after the rule that has led to this chain.
    Return,
    /// It goes through this chain, then on.
    Jump(String),
    /// It goes through this chain, then on after the rule that has led to the present one.
    Goto(String),
}

/// The decision of a rule with these expressions; none if it has a condition, or does not decide.
pub(super) fn decision_of(expressions: &[u8]) -> Option<Decision> {
    for (kind, expression) in message::attributes(expressions) {
        let name = message::read_text(message::find(expression, EXPRESSION_NAME)?);
        let data = message::find(expression, EXPRESSION_DATA).unwrap_or_default();
        let extension = || message::find(data, EXTENSION_NAME).map(message::read_text);
        match &*name {
            _ if kind != LIST_ITEM => return None,
            name if WITHOUT_EFFECT.contains(&name) => {}
            "match" if extension().as_deref() == Some("comment") => {}
            "target" if extension().as_deref() == Some("REJECT") => return Some(Decision::Drop),
            "reject" => return Some(Decision::Drop),
            "immediate" => return verdict(data),
            _ => return None,
        }
    }
    None
}

fn verdict(data: &[u8]) -> Option<Decision> {
    let verdict = message::find(message::find(data, IMMEDIATE_DATA)?, DATA_VERDICT)?;
    let chain = || message::find(verdict, VERDICT_CHAIN).map(message::read_text);
    match message::read_be32(message::find(verdict, VERDICT_CODE)?, 0)?.cast_signed() {
        0 => Some(Decision::Drop),
        1 => Some(Decision::Accept),
        -3 => chain().map(Decision::Jump),
        -4 => chain().map(Decision::Goto),
        -5 => Some(Decision::Return),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        link::InterfaceName,
        message::Attributes,
        nft::expression::{
            Comparison, Expression, Meta, Verdict, compare, decide, interface_bytes, load_meta,
        },
    };

    fn bytes(expressions: &[Expression]) -> Vec<u8> {
        let list = expressions.iter().fold(Attributes::new(), |list, expression| {
            let item = Attributes::new()
                .with_text(EXPRESSION_NAME, expression.name)
                .with_nested(EXPRESSION_DATA, &expression.data);
            list.with_nested(LIST_ITEM, &item)
        });
        list.as_bytes().to_vec()
    }

    fn named(name: &'static str, data: Attributes) -> Expression {
        Expression { name, data }
    }

    #[test]
    fn rule_without_a_condition_decides() {
        let extension = |name: &str| Attributes::new().with_text(EXTENSION_NAME, name);
        let counter = || named("counter", Attributes::new());
        for (expressions, expected) in [
            (vec![decide(Verdict::Drop)], Some(Decision::Drop)),
            (vec![counter(), decide(Verdict::Accept)], Some(Decision::Accept)),
            (vec![decide(Verdict::Jump("more"))], Some(Decision::Jump("more".to_owned()))),
            (vec![counter(), named("reject", Attributes::new())], Some(Decision::Drop)),
            (
                vec![named("match", extension("comment")), counter(), named("target", extension("REJECT"))],
                Some(Decision::Drop),
            ),
            (vec![named("match", extension("conntrack")), decide(Verdict::Drop)], None),
            (vec![named("target", extension("LOG"))], None),
            (vec![counter()], None),
            (Vec::new(), None),
        ] {
            assert_eq!(decision_of(&bytes(&expressions)), expected, "{expressions:?}");
        }
        let bridge = InterfaceName::new("br").unwrap();
        let name = interface_bytes(bridge.as_str());
        let condition =
            [load_meta(Meta::InputName, 0), compare(0, Comparison::Equal, &name), decide(Verdict::Drop)];
        assert_eq!(decision_of(&bytes(&condition)), None);
    }

    #[test]
    fn torn_rules_decide_nothing_or_what_is_left_of_them() {
        let whole = bytes(&[named("counter", Attributes::new()), decide(Verdict::Jump("more"))]);
        for len in 0..whole.len() {
            let _ = decision_of(&whole[..len]);
            let mut changed = whole.clone();
            changed[len] ^= 0xff;
            let _ = decision_of(&changed);
        }
    }
}
