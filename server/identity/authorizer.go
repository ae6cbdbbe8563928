package identity

import (
	"fmt"

	"github.com/idemd/idemd/store"
)

// Authorizer decides what principals may do, as the policy says now. It needs no connection:
// who asks may be known from elsewhere. A nil one allows everything: there is no policy.
type Authorizer struct {
	policy *watched[*Policy]
}

// Authorize refuses what a principal may not do in a namespace. One in which the principal has
// not that role is refused as if it did not exist, whether it does or not.
func (a *Authorizer) Authorize(principal string, role Role, namespace string) error {
	if a == nil {
		return nil
	}
	if err := store.ValidateNamespaceName(namespace); err != nil {
		return err
	}
	where := a.policy.now().scopeOf(Principal(principal), role)
	switch {
	case !where.granted:
		return denied(principal, role)
	case !where.has(namespace):
		return store.NamespaceUnknown(namespace)
	}
	return nil
}

// AuthorizeAny refuses what is about no namespace, unless the principal has one of the roles
// anywhere.
func (a *Authorizer) AuthorizeAny(principal string, anyOf ...Role) error {
	if a == nil {
		return nil
	}
	policy := a.policy.now()
	for _, role := range anyOf {
		if policy.scopeOf(Principal(principal), role).granted {
			return nil
		}
	}
	return denied(principal, anyOf[0])
}

// AuthorizeAll refuses what is about all namespaces, unless the principal has the role in all.
func (a *Authorizer) AuthorizeAll(principal string, role Role) error {
	switch {
	case a == nil:
		return nil
	case !a.policy.now().scopeOf(Principal(principal), role).all:
		return store.Refuse(store.ErrPermissionDenied, fmt.Sprintf("%s needs the role %s in all namespaces, \"*\"", principal, role))
	}
	return nil
}

// MayUse reports whether the principal has a role in a namespace, whichever.
func (a *Authorizer) MayUse(principal, namespace string) bool {
	for role := range roles {
		if role != Peer && a.Authorize(principal, role, namespace) == nil {
			return true
		}
	}
	return false
}

func denied(principal string, role Role) error {
	return store.Refuse(store.ErrPermissionDenied, fmt.Sprintf("%s needs the role %s", principal, role))
}
