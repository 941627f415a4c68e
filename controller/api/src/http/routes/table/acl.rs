//! Access control.

use super::{
    All, Field, Fields, First, Flag, Found, Ignored, List, NotBuilt, Nothing, OneNamed, OneOf, Route,
    Servers, below, delete, get, put, read, remove, write,
};

const ACL: &str = "access control lists";

pub(super) const ROUTES: &[Route] = &[
    get("acl/policies", NotBuilt(ACL), Servers(read("ACL.ListPolicies", List("Policies")))),
    get(
        "acl/policy/{Name}",
        NotBuilt(ACL),
        Servers(read("ACL.GetPolicy", Found("Policy", "ACL policy not found"))),
    ),
    put(
        "acl/policy/{Name}",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertPolicies", OneNamed("Policies", "Name", "ACL policy name")).shows(Nothing)),
    ),
    delete("acl/policy/{Names[]}", NotBuilt(ACL), Servers(remove("ACL.DeletePolicies"))),
    put(
        "acl/bootstrap",
        NotBuilt(ACL),
        Servers(write("ACL.Bootstrap", Fields(&["BootstrapSecret"])).shows(First("Tokens"))),
    ),
    get(
        "acl/tokens",
        NotBuilt(ACL),
        Servers(read("ACL.ListTokens", List("Tokens")).with(&[("GlobalOnly", Flag("global"))])),
    ),
    put(
        "acl/token",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertTokens", OneOf("Tokens")).shows(First("Tokens"))),
    ),
    put("acl/token/onetime", NotBuilt(ACL), Servers(write("ACL.UpsertOneTimeToken", Ignored))),
    put("acl/token/onetime/exchange", NotBuilt(ACL), Servers(write("ACL.ExchangeOneTimeToken", All))),
    get(
        "acl/token/self",
        NotBuilt(ACL),
        Servers(read("ACL.WhoAmI", Found("Identity.ACLToken", "ACL token not found"))),
    ),
    get(
        "acl/token/{AccessorID}",
        NotBuilt(ACL),
        Servers(read("ACL.GetToken", Found("Token", "ACL token not found"))),
    ),
    put(
        "acl/token/{AccessorID}",
        NotBuilt(ACL),
        Servers(
            write("ACL.UpsertTokens", OneNamed("Tokens", "AccessorID", "ACL token accessor"))
                .shows(First("Tokens")),
        ),
    ),
    delete("acl/token/{AccessorIDs[]}", NotBuilt(ACL), Servers(remove("ACL.DeleteTokens"))),
    get("acl/roles", NotBuilt(ACL), Servers(read("ACL.ListRoles", List("ACLRoles")))),
    put(
        "acl/role",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertRoles", OneOf("ACLRoles")).shows(First("ACLRoles"))),
    ),
    get(
        "acl/role/name/{RoleName}",
        NotBuilt(ACL),
        Servers(read("ACL.GetRoleByName", Found("ACLRole", "ACL role not found"))),
    ),
    get(
        "acl/role/{RoleID}",
        NotBuilt(ACL),
        Servers(read("ACL.GetRoleByID", Found("ACLRole", "ACL role not found"))),
    ),
    put(
        "acl/role/{RoleID}",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertRoles", OneNamed("ACLRoles", "ID", "ACL role ID")).shows(First("ACLRoles"))),
    ),
    delete("acl/role/{ACLRoleIDs[]}", NotBuilt(ACL), Servers(remove("ACL.DeleteRolesByID"))),
    get("acl/auth-methods", NotBuilt(ACL), Servers(read("ACL.ListAuthMethods", List("AuthMethods")))),
    put(
        "acl/auth-method",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertAuthMethods", OneOf("AuthMethods")).shows(First("AuthMethods"))),
    ),
    get(
        "acl/auth-method/{MethodName}",
        NotBuilt(ACL),
        Servers(read("ACL.GetAuthMethod", Found("AuthMethod", "ACL auth-method not found"))),
    ),
    put(
        "acl/auth-method/{MethodName}",
        NotBuilt(ACL),
        Servers(
            write("ACL.UpsertAuthMethods", OneNamed("AuthMethods", "Name", "ACL auth-method name"))
                .shows(First("AuthMethods")),
        ),
    ),
    delete("acl/auth-method/{Names[]}", NotBuilt(ACL), Servers(remove("ACL.DeleteAuthMethods"))),
    get("acl/binding-rules", NotBuilt(ACL), Servers(read("ACL.ListBindingRules", List("ACLBindingRules")))),
    put(
        "acl/binding-rule",
        NotBuilt(ACL),
        Servers(write("ACL.UpsertBindingRules", OneOf("ACLBindingRules")).shows(First("ACLBindingRules"))),
    ),
    get(
        "acl/binding-rule/{ACLBindingRuleID}",
        NotBuilt(ACL),
        Servers(read("ACL.GetBindingRule", Found("ACLBindingRule", "ACL binding rule not found"))),
    ),
    put(
        "acl/binding-rule/{ACLBindingRuleID}",
        NotBuilt(ACL),
        Servers(
            write("ACL.UpsertBindingRules", OneNamed("ACLBindingRules", "ID", "ACL binding rule ID"))
                .shows(First("ACLBindingRules")),
        ),
    ),
    delete(
        "acl/binding-rule/{ACLBindingRuleIDs[]}",
        NotBuilt(ACL),
        Servers(remove("ACL.DeleteBindingRules")),
    ),
    put("acl/oidc/auth-url", NotBuilt(ACL), Servers(write("ACL.OIDCAuthURL", All))),
    put(
        "acl/oidc/complete-auth",
        NotBuilt(ACL),
        Servers(write("ACL.OIDCCompleteAuth", All).shows(Field("ACLToken"))),
    ),
    put("acl/login", NotBuilt(ACL), Servers(write("ACL.Login", All).shows(Field("ACLToken")))),
    put(
        "acl/identity/client-introduction-token",
        NotBuilt(ACL),
        Servers(write("ACL.CreateClientIntroductionToken", All)),
    ),
    below("acl", ACL),
    below("sentinel", "Sentinel policies"),
];
