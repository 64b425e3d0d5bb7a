// Package policies evaluates the admission policies and the definitions' rules that Leasehold ships
// with Kubernetes' own validators, without an API server.
//
// Its tests are rows: who writes what over which object, and the verdict. RBAC is not evaluated here:
// a user's rights are part of the row.
package policies
