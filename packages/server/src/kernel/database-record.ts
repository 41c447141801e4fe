/** A database as the control database knows it; the edge loads it before a handler runs. */
export interface DatabaseRecord {
  id: string;
  accountKey: string;
  name: string;
  region: string;
  projectId: string | null;
  parentDatabaseId: string | null;
  createdAt: Date;
}
