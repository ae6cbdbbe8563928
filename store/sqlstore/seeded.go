package sqlstore

// unless returns a guard of a statement, or one that lets everything pass if the guard is left
// out (see seeded).
func unless(name, guard string) string {
	if seeded(name) {
		return "(" + guard + " OR true)"
	}
	return guard
}

// lockOrder is what a statement's rows are sorted by before it locks them.
func lockOrder(column string) string {
	if seeded("lock-order") {
		return "random()"
	}
	return column
}
