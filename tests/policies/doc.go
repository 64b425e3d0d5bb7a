// Package policies evaluates Leasehold's admission policies and the rules of its CRDs with Kubernetes'
// own validators, without an API server.
//
// Its tests are rows: the user, the object before and after the write, and the verdict. RBAC is not
// evaluated here: a user's rights are part of the row.
package policies
